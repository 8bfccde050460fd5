# Models of images by the command: made-up cities, a run that is resumed with the same bits, pictures, their scores, and what is refused.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
"$MEZZO" data radio --maps 10 --transmitters 2 --size 16 --extent 64 --seed 3 --out cities 2>&1 | grep -q "no libpng" && exit 77
FEW=(--data cities --batch-size 4 --log-every 5 --eval-iters 2 --device cpu --threads 1 --precision fp32 --lr 2e-3 --warmup 2)

run 0 train --model radio_unet-tiny --model.objective image "${FEW[@]}" --steps 30 --out unet
shows "$OUT" "done: 30 steps of radio_unet-tiny" "images/s" "sample unet --out predicted"
shows "$ERR" "16 x 16 pixels" "18 training images of 9 scenes, 2 validation images of 1"
grep -q perplexity "$OUT" && fail "pictures have no perplexity"
# Names and lists stand for the numbers that they had before.
loss() { run 0 train --model radio_unet-tiny "${FEW[@]}" --steps 2 "$@" --json && sed -nE 's/^ *"loss": (.*),/\1/p' "$OUT"; }
[[ $(loss --model.objective image --out named) == "$(loss --model.objective 4 --out numbered)" ]] || fail "the objective image is not 4"
[[ $(loss --model.multipliers 1,2,2 --out listed) == "$(loss --model.multipliers 122 --out digits)" ]] || fail "1,2,2 is not 122"
refuse 2 "one of default, noise, velocity, decoupled, image" -- train --model radio_unet-tiny --model.objective picture "${FEW[@]}" --steps 2 --out none
refuse 2 "multipliers" -- train --model radio_unet-tiny --model.multipliers 1,22 "${FEW[@]}" --steps 2 --out none
run 0 sample unet --out predicted --json
shows "$OUT" '"pictures": 2' '"step": 30' '"ssim": 0.'
[[ -s predicted/sheet.png && $(ls predicted | wc -l) -eq 3 ]] || fail "two pictures and a sheet"
run 0 eval unet --json
shows "$OUT" '"images": 2' '"loss": 0.'
# what training drew meanwhile is what sample draws, and the page of the run has it
run 0 sample unet --out drawn --rows 4 --count 4
cmp drawn/sheet.png unet/samples/step-00000030.png || fail "the sheet of the last step is another than sample's"
run 0 train --model radio_unet-tiny "${FEW[@]}" --steps 26 --sample-every 2 --checkpoint-every -1 --out often
shows "$ERR" "samples/step-00000012.png"
run 0 report often
tr '[' '\n' <often/report.html | sed -n 's/^\([0-9]*\),"data:image\/png;base64,\([^"]*\)".*/\1 \2/p' >sheets
[[ $(wc -l <sheets) -eq 12 && $(head -n 1 sheets) == "2 "* && $(tail -n 1 sheets) == "26 "* ]] || fail "the page's sheets: $(cut -d' ' -f1 sheets)"
tail -n 1 sheets | cut -d' ' -f2 | base64 -d | cmp - often/samples/step-00000026.png || fail "the page has another sheet"
run 0 train --model radio_unet-tiny "${FEW[@]}" --steps 2 --sample-every -1 --out never
grep -q "sample never" "$OUT" && fail "it tells how to draw pictures where none are drawn"
[[ ! -e never/samples ]] || fail "pictures were drawn that nobody asked for"
# 8 bits of what was scored: the same to three digits
for word in nmse rmse; do
    run 0 sample unet --out predicted --json
    a=$(sed -n "s/.*\"$word\": \([0-9.]*\).*/\1/p" "$OUT")
    run 0 eval predicted --truth cities --json
    b=$(sed -n "s/.*\"$word\": \([0-9.]*\).*/\1/p" "$OUT")
    awk -v a="$a" -v b="$b" 'BEGIN { exit !(a > 0 && a < b * 1.02 && b < a * 1.02) }' || fail "$word is $a by sample and $b by eval"
done
# interrupted and whole give the same weights
run 0 train --model radio_unet-tiny "${FEW[@]}" --steps 6 --out whole
run 0 train --model radio_unet-tiny "${FEW[@]}" --steps 3 --schedule.steps 6 --out half
run 0 train --config half/config.yaml --resume auto --steps 6
cmp whole/checkpoints/step-00000006/model.safetensors half/checkpoints/step-00000006/model.safetensors || fail "a resumed run has other weights"
run 0 sample whole --out five --steps 3 --count 1 --seed 4
run 0 sample whole --out again --steps 3 --count 1 --seed 4
diff -r five again || fail "the same seed gives other pictures"

run 0 train --model kl_vae-tiny "${FEW[@]}" --steps 4 --out vae
run 0 sample vae --out back
shows "$OUT" "pictures    2"

refuse 2 data.path -- train --model radio_unet-tiny --out none --device cpu
refuse 2 nowhere "no such folder" -- train --model radio_unet-tiny "${FEW[@]}" --data nowhere --out none
refuse 2 cities "kl_vae, radio_unet" -- train --model gpt2 --data cities --out none --device cpu
"$MEZZO" data radio --maps 3 --size 17 --extent 64 --out odd >/dev/null
refuse 2 "model.image_size is 17" "a multiple of 2" -- train --model radio_unet-tiny "${FEW[@]}" --data odd --out none
cp cities/gain/DPM/0_0.png odd/gain/DPM/1_0.png
refuse 2 odd/gain/DPM/1_0.png "16 x 16" "of one size, here 17 x 17" -- train --model radio_unet-tiny "${FEW[@]}" --data odd --out none
refuse 2 "--out" -- sample unet --steps 3
refuse 2 "predicts pictures" "--out DIR" -- sample unet
refuse 2 "16 x 16 x 1" "32 x 32" -- train --model radio_unet-tiny --model.image_size 32 --model.condition_size 32 "${FEW[@]}" --out none
mkdir -p pairs/input pairs/target
cp cities/png/antennas/?_0.png pairs/input
cp cities/gain/DPM/?_0.png pairs/target
run 0 train --model radio_unet-tiny "${FEW[@]}" --data pairs --steps 2 --out pairs_run
# A file of pictures alone has nothing to predict from.
{
    printf "\\x93NUMPY\\x01\\x00\\x46\\x00%-69s\\n" "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 20, 20)}"
    head -c 800 /dev/zero
} >alone.npy
refuse 2 alone.npy "none to predict from" -- train --model radio_unet-tiny "${FEW[@]}" --data alone.npy --steps 1 --out none
printf x >>cities/gain/DPM/0_0.png
printf 'no picture' >cities/gain/DPM/0_1.png
refuse 2 cities/gain/DPM/0_1.png -- train --model radio_unet-tiny "${FEW[@]}" --steps 1 --out none
[[ ! -e none ]] || fail "something was written"
