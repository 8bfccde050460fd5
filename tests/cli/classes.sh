# Classifiers of tables and of folders of images: the classes' names stay with the run, so that other data get the same numbers.
# Seen to fail with: the names not kept (another file's classes then count from 0); RGB images read as gray.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
FEW=(--batch-size 16 --log-every 50 --eval-every 0 --device cpu --threads 1 --precision fp32)

# 60 rows; the class says which of two numbers is large.
{
    echo '"x, first",kind,second'
    for i in {10..29}; do printf '3.%d,left,-1\n-1e0, "right" ,0.%d\n0,none,%d\n' "$i" "$i" 3; done
} | sed 's/ "right" /right/' >table.csv
run 0 train --model mlp --data table.csv --labels kind "${FEW[@]}" --steps 150 --lr 1e-2 --out table
shows "$OUT" "(accuracy 100.00 %"
shows "$ERR" "mlp: 2 features, width 64, 3 classes, 54 examples of 60 to train on"
[[ $(tr -d ' \n' <table/classes.json) == '{"classes":["left","none","right"]}' ]] || fail "$(<table/classes.json)"
run 0 eval table
shows "$OUT" "accuracy    1.0000"
# Of other data that have one class only, and another order of rows.
{ head -n 1 table.csv; grep right table.csv; } >right.csv
run 0 eval table --data right.csv --labels kind
shows "$OUT" "accuracy    1.0000" "examples    20"
run 0 train --model mlp --data table.csv --labels kind "${FEW[@]}" --steps 160 --lr 1e-2 --out table --resume auto
# Integers are sorted as numbers; the column is called label where none is named.
{ echo 'a,label'; for i in 1 2 10; do for _ in 1 2 3 4; do echo "$i,$i"; done; done; } >numbers.csv
run 0 train --model mlp --data numbers.csv "${FEW[@]}" --steps 1 --out numbers
[[ $(tr -d ' \n' <numbers/classes.json) == '{"classes":["1","2","10"]}' ]] || fail "$(<numbers/classes.json)"
refuse 2 "column 'label' is missing" "'kind'" "--labels COLUMN" -- train --model mlp --data table.csv "${FEW[@]}" --out none
sed 's/^0,none/0,never/' table.csv >other.csv
refuse 2 "other.csv:4: the class 'never' is none of the model's 3, from 'left' to 'right'" -- eval table --data other.csv --labels kind
sed '5s/^[^,]*,/x,/' table.csv >word.csv
refuse 2 "word.csv:5" "'x, first'" "expected a number, got 'x'" -- train --model mlp --data word.csv --labels kind "${FEW[@]}" --out none
sed '5s/^[^,]*,/inf,/' table.csv >inf.csv
refuse 2 "inf.csv:5" -- train --model mlp --data inf.csv --labels kind "${FEW[@]}" --out none
echo 'a,label' >empty.csv
refuse 2 "empty.csv" "nothing to learn from" -- train --model mlp --data empty.csv "${FEW[@]}" --out none
refuse 2 "right.csv: every example is of the class 'right'" -- train --model mlp --data right.csv --labels kind "${FEW[@]}" --out none
refuse 2 "cnn needs square images" -- train --model cnn --data table.csv --labels kind "${FEW[@]}" --out none

# Folders of images: bars and rows, in which the colour of the noise says nothing.
command -v python3 >/dev/null || exit 0
cat >images.py <<'END'
import os, random, struct, zlib
random.seed(1)
def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
def write(path, width, height, pixels, colours):
    row = len(pixels) // height
    raw = b"".join(b"\0" + bytes(pixels[y * row:(y + 1) * row]) for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if colours else 0, 0, 0, 0)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))
for name in ("rows", "bars"):
    for i in range(40):
        k, pixels = random.randrange(8), []
        for y in range(8):
            for x in range(8):
                bright = 220 if (y if name == "rows" else x) == k else random.randrange(60)
                pixels += [bright, bright, bright]
        write(f"gray/{name}/{i:02}.png", 8, 8, pixels[::3], False)
        write(f"wide/{name}/{i:02}.png", 8, 4, pixels[:96:3], False)
for name, colour in (("red", (200, 90, 0)), ("green", (90, 145, 0))):  # the same brightness, about 124
    for i in range(40):
        write(f"colour/{name}/{i:02}.png", 4, 4, [c + random.randrange(9) for _ in range(16) for c in colour], True)
END
python3 images.py && echo x >gray/rows/notes.txt && mkdir gray/.cache || fail "no images"
"$MEZZO" train --model cnn --data gray "${FEW[@]}" --steps 1 --out probe 2>&1 | grep -q "no libpng" && exit 77
cnn=(--model cnn --d-model 8 --model.multipliers 12 "${FEW[@]}" --lr 1e-2 --warmup 5)
run 0 train "${cnn[@]}" --data gray --steps 60 --out gray_run
shows "$OUT" "(accuracy 100.00 %"
[[ $(tr -d ' \n' <gray_run/classes.json) == '{"classes":["bars","rows"]}' ]] || fail "$(<gray_run/classes.json)"
mkdir one && cp -r gray/rows one
run 0 eval gray_run --data one
shows "$OUT" "accuracy    1.0000" "examples    40"
run 0 train "${cnn[@]}" --data colour --steps 60 --out colour_run
shows "$OUT" "(accuracy 100.00 %"
run 0 train --model mlp --data wide "${FEW[@]}" --steps 5 --out wide_run
shows "$ERR" "mlp: 32 features"
refuse 2 "gray: the class 'bars' is none of the model's 2" -- eval colour_run --data gray
mkdir other && cp -r gray/rows other/red && cp -r gray/bars other/green
refuse 2 "images of 8 x 8 with 1 channels, but cnn takes 4 x 4 with 3" -- eval colour_run --data other
refuse 2 "wide: cnn needs square images" -- train "${cnn[@]}" --data wide --out none
refuse 2 "each folder is a class" -- train "${cnn[@]}" --data gray --labels x --out none
mkdir gray/zero
refuse 2 "gray/zero: no *.png" -- train "${cnn[@]}" --data gray --out none
rmdir gray/zero
cp wide/rows/00.png gray/rows/99.png
refuse 2 "gray/rows/99.png: 8 x 4 pixels" -- train "${cnn[@]}" --data gray --out none
head -c 60 gray/rows/00.png >gray/rows/99.png
refuse 2 "gray/rows/99.png: a broken PNG file" -- train "${cnn[@]}" --data gray --out none
refuse 2 "no folders in it" -- train "${cnn[@]}" --data gray/rows --out none
