# A model from an ONNX file by the command: trained from .npz and .npy files, a table and text, evaluated, resumed with the same bits, and what is
# refused. The models: tests/golden/make/own_models.py.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
command -v python3 >/dev/null || exit 0
FEW=(--batch-size 8 --log-every 10 --eval-every 0 --device cpu --threads 1 --precision fp32)
DATA=$MEZZO_TESTS/golden/data
cp "$DATA"/own_*.onnx .
npz() { python3 "$MEZZO_TESTS/cli/npz.py" "$@" || fail "no $1"; }

"$MEZZO" train --model own_mlp.onnx --data none.npz >"$OUT" 2>"$ERR" </dev/null
grep -q "this build reads no ONNX files" "$ERR" && exit 0

# the class is which third of the first feature's range it is in
npz a.npz "x=f4,96x7,r()*3 if i%7==0 else r()" "labels=i8,96,0"
python3 - <<'PY' || fail "no labels"
import struct, zipfile
with zipfile.ZipFile("a.npz") as f:
    parts = {n: f.read(n) for n in f.namelist()}
x = struct.unpack("<672f", parts["x.npy"][-672 * 4:])
y = struct.pack("<96q", *(int(x[7 * i]) for i in range(96)))
parts["labels.npy"] = parts["labels.npy"][:-96 * 8] + y
for name, method in (("a.npz", zipfile.ZIP_STORED), ("packed.npz", zipfile.ZIP_DEFLATED)):
    with zipfile.ZipFile(name, "w", method) as f:
        for n in parts:
            f.writestr(n, parts[n])
for n in parts:
    open(n, "wb").write(parts[n])
open("t.csv", "w").write("a,b,c,d,e,f,g,label\n" + "".join(",".join(map(str, x[7 * i:7 * i + 7])) + f",{int(x[7 * i])}\n" for i in range(96)))
PY

run 0 train --model own_mlp.onnx --loss cross_entropy --data a.npz "${FEW[@]}" --steps 60 --lr 1e-2 --out classes
shows "$OUT" "done: 60 steps" "(accuracy "
shows "$ERR" "own_mlp.onnx: cross_entropy, 86 examples of 96 to train on"
[[ -f classes/graph/model.onnx ]] || fail "the run keeps no copy of its model"
# arrays of 16 bits are the same numbers; what has no such number is refused by name
for types in "f4 i8" "f2 u2"; do
    npz ${types% *}.npz "x=${types% *},96x7,(i*37%64-32)/16" "labels=${types#* },96,i%5"
    run 0 train --model own_mlp.onnx --loss cross_entropy --data ${types% *}.npz "${FEW[@]}" --steps 3 --out of-${types% *}
done
cmp of-f[24]/checkpoints/step-00000003/model.safetensors || fail "f2 and u2 are other numbers than f4 and i8"
npz c8.npz "x=c8,96x7,0" "labels=i8,96,0"
refuse 2 "c8.npz: array 'x': the type is '<c8'" -- train --model own_mlp.onnx --loss cross_entropy --data c8.npz "${FEW[@]}" --steps 3 --out none
cp own_mlp.onnx gone.onnx
run 0 train --model gone.onnx --loss cross_entropy --data a.npz "${FEW[@]}" --steps 4 --checkpoint-every 2 --out left
rm gone.onnx
run 0 audit left --threads 1
run 0 train --config left/config.yaml --resume auto --steps 6
shows "$ERR" "'gone.onnx' is no longer there"
run 0 audit left --threads 1
refuse 2 "no such file" -- train --config left/config.yaml --model gone.onnx --resume auto --steps 8
shows classes/config.yaml "name: own_mlp.onnx" "loss: cross_entropy"
run 0 train --model own_mlp.onnx --loss cross_entropy --data packed.npz "${FEW[@]}" --steps 30 --schedule-steps 60 --lr 1e-2 --out two
run 0 train --config two/config.yaml --resume auto --steps 60 --schedule-steps 60
cmp -s classes/checkpoints/step-00000060/model.safetensors two/checkpoints/step-00000060/model.safetensors ||
    fail "a resumed run, from compressed arrays, has other weights"

# the copy is what later commands read
rm own_mlp.onnx
run 0 eval classes --json
shows "$OUT" '"accuracy": ' '"examples": 10'
run 0 eval classes --data a.npz
shows "$OUT" "examples    96"
run 0 eval classes --data x.npy --labels labels.npy
shows "$OUT" "examples    96"
whole=$(grep loss "$OUT")
run 0 eval classes --data t.csv
[[ $(grep loss "$OUT") == "$whole" ]] || fail "a table has another loss than the arrays it was made from"
cp "$DATA"/own_segment.onnx own_mlp.onnx
refuse 2 image -- train --config classes/config.yaml --resume auto --steps 70
cp "$DATA"/own_mlp.onnx .
echo >>own_mlp.onnx # another file, though it says the same
"$MEZZO" train --config classes/config.yaml --resume auto --steps 70 >"$OUT" 2>"$ERR" </dev/null && fail "a changed model goes on"
cp "$DATA"/own_mlp.onnx .
refuse 2 "no samples" -- sample classes
truncate -s 200 two/graph/model.onnx
refuse 2 graph/model.onnx -- eval two

# the file that came in, with trained weights, which train on from where they were
run 0 export classes --onnx trained.onnx --json
shows "$OUT" '"file": "trained.onnx"' '"tensors": 6'
run 0 train --model trained.onnx --loss cross_entropy --data a.npz "${FEW[@]}" --steps 1 --lr 0 --min-lr 0 --out again
run 0 eval classes --data a.npz
whole=$(grep loss "$OUT")
run 0 eval again --data a.npz
[[ $(grep loss "$OUT") == "$whole" ]] || fail "an exported file has another loss"
refuse 2 "is there already" -- export classes --onnx trained.onnx
refuse 2 "with --onnx FILE" -- export classes --out folder
refuse 2 "without adapters" -- export classes --onnx x.onnx --adapter
refuse 2 "mezzo train --model own_mlp.onnx" -- import own_mlp.onnx --out imported

# numbers: every loss of them, with weights
npz n.npz "x=f4,40x7,r()" "wanted=f4,40x5,r()" "weights=f4,40,i%3"
for loss in mse l1 huber; do
    run 0 train --model own_mlp.onnx --loss $loss --labels wanted --data n.npz "${FEW[@]}" --steps 20 --out $loss
    shows "$OUT" "(MAE 0." "R² "
    shows $loss/metrics.jsonl '"val/mae"' '"val/r2"'
done
run 0 eval mse
shows "$OUT" "MAE         0." "R² "
run 1 verify --model own_mlp.onnx --loss mse --labels wanted --data n.npz --batch-size 8 --device cpu --threads 1 --steps 20 --seeds 1 --precision bf16 --min-speedup 1e6 --out judged
shows judged/verify.json '"relative_loss_difference"'
shows judged/verify.md "No right answers can be counted here"
run 0 train --model own_mlp.onnx --loss "mse(logits,wanted) + 0.1*bce_with_logits(logits,wanted)" --data n.npz "${FEW[@]}" --steps 20 --out sum
run 0 eval sum
# the model's own loss
npz l.npz "x=f4,40x7,r()" "target=f4,40x5,r()"
run 0 train --model own_loss.onnx --data l.npz "${FEW[@]}" --batch-size 4 --steps 20 --out own
run 0 eval own
shows "$OUT" "examples    4"
refuse 2 "fill no batch of 100" -- train --model own_loss.onnx --data l.npz "${FEW[@]}" --batch-size 100 --steps 2 --out none
# sizes that data decides, classes of pixels, of which some do not count
npz s.npz "image=f4,20x3x6x5,r()" "labels=i8,20x6x5,-100 if i%30<5 else i%4"
run 0 train --model own_segment.onnx --loss cross_entropy --data s.npz "${FEW[@]}" --steps 20 --out pixels
shows pixels/config.yaml "height=6,width=5"
run 0 eval pixels
shows "$OUT" "examples    50"
refuse 2 "no input has a dimension 'nonsense'" -- memory --model own_mlp.onnx --loss cross_entropy --dim nonsense=4
refuse 2 "dimension 2 of input 'image' has no size" "--dim height=N" -- memory --model own_segment.onnx --loss cross_entropy
# a table with numbers to predict, and images whose channels the model wants first
python3 - <<'PY' || fail "no table"
rows = open("t.csv").read().splitlines()
open("p.csv", "w").write("\n".join([rows[0].replace("label", "price")] + [r.rsplit(",", 1)[0] + f",{float(r.split(',')[0]) * 2}" for r in rows[1:]]) + "\n")
PY
run 0 train --model own_price.onnx --loss mse --data p.csv --labels price "${FEW[@]}" --steps 400 --warmup 0 --lr 1e-2 --out price
shows "$OUT" "(MAE 0.0" "R² "
grep -qE "R² (0.99|1)" "$OUT" || fail "a product by 2 is not learned"
run 0 eval price --data p.csv --labels price
shows "$OUT" "examples    96"
python3 "$MEZZO_TESTS/cli/png.py" || fail "no images"
run 0 train --model own_picture.onnx --loss cross_entropy --data pictures "${FEW[@]}" --steps 60 --warmup 0 --lr 1e-2 --out colors
shows "$OUT" "(accuracy 100.00 %"
run 0 eval colors --data pictures
shows "$OUT" "accuracy    1.0000" "examples    60"
# texts
text 60 >text.txt
run 0 train --model own_tokens.onnx --data text.txt --tokenizer char --seq-len 16 "${FEW[@]}" --steps 30 --lr 1e-2 --out texts
shows "$OUT" "perplexity"
run 0 eval texts
shows "$OUT" "bits/byte"
run 0 sample texts --tokens 20 --prompt the
[[ $(wc -c <"$OUT") -ge 5 ]] || fail "no text"

# refused in one line
npz f.npz "x=f4,40x7,r()" "weights=f4,40,i%3"
refuse 2 "no output of one number" "--loss" -- train --model own_mlp.onnx --data a.npz "${FEW[@]}" --steps 2 --out none
refuse 2 "model.loss" nonsense -- train --model own_mlp.onnx --loss 'mse(nonsense' --data a.npz "${FEW[@]}" --steps 2 --out none
refuse 2 "no output 'nonsense'" -- train --model own_mlp.onnx --loss 'mse(nonsense)' --data a.npz "${FEW[@]}" --steps 2 --out none
refuse 2 a.npz "no array 'wanted'" -- train --model own_mlp.onnx --loss mse --labels wanted --data a.npz "${FEW[@]}" --steps 2 --out none
refuse 2 l.npz "no array 'labels'" -- train --model own_mlp.onnx --loss mse --data l.npz "${FEW[@]}" --steps 2 --out none
refuse 2 "array 'weights' has floating-point numbers, and the loss of own_mlp.onnx takes integers" -- train --model own_mlp.onnx --loss cross_entropy --labels weights --data f.npz "${FEW[@]}" --steps 2 --out none
refuse 2 "examples of 'x' are [7]" "of own_segment.onnx takes [3, 6, 5]" -- train --model own_segment.onnx --loss cross_entropy --dim height=6,width=5 --data x.npy \
    --labels labels.npy "${FEW[@]}" --steps 2 --out none
refuse 2 "model.loss is set" -- train --model toy --loss mse "${FEW[@]}" --steps 2 --out none
npz ids.npz "input_ids=i8,40x8,-3 if i==307 else i%5" "labels=i8,40x8,i%5"
refuse 2 "array 'input_ids' has -3 in row 38: the table" "rows 0 to 95" -- train --model own_tokens.onnx --loss cross_entropy --data ids.npz "${FEW[@]}" --steps 1 --out none
refuse 2 "data.pack" -- train --model own_tokens.onnx --data text.txt --pack "${FEW[@]}" --steps 2 --out none
head -c 300 a.npz >cut.npz
refuse 2 cut.npz -- train --model own_mlp.onnx --loss cross_entropy --data cut.npz "${FEW[@]}" --steps 2 --out none
python3 - <<'PY'
data = bytearray(open("a.npz", "rb").read())
data[200] ^= 1
open("bit.npz", "wb").write(data)


def field(number, data):
    n = len(data)
    return bytes([number << 3 | 2] + ([n] if n < 128 else [n & 127 | 128, n >> 7])) + data


nodes = [field(1, field(1, b"x") + field(2, out) + field(4, op)) for out, op in ((b"h", b"LSTM"), (b"i", b"LSTM"), (b"y", b"GRU"))]
graph = b"".join(nodes) + field(12, field(1, b"y"))
open("unknown.onnx", "wb").write(field(7, graph) + field(8, bytes([2 << 3, 17])))


def number(n, value):
    return bytes([n << 3, value])


shape = b"".join(field(1, d) for d in (field(2, b"rows"), number(1, 1), number(1, 9), number(1, 9)))
image = field(1, b"x") + field(2, field(1, number(1, 1) + field(2, shape)))
weight = b"".join(number(1, d) for d in (1, 1, 3, 3)) + number(2, 1) + field(8, b"w") + field(9, bytes(36))
window = field(1, b"kernel_shape") + number(8, 5) + number(8, 5) + bytes([20 << 3 & 127 | 128, 1, 7])
node = field(1, b"x") + field(1, b"w") + field(2, b"y") + field(4, b"Conv") + field(5, window)
open("window.onnx", "wb").write(field(7, field(1, node) + field(5, weight) + field(11, image) + field(12, field(1, b"y"))) + field(8, number(2, 17)))

# positions times frequencies, of which the cosines are taken
rows = field(1, field(2, b"rows")) + field(1, number(1, 1))
ids = field(1, b"x") + field(2, field(1, number(1, 7) + field(2, rows)))
tensors = b"".join(field(5, b"".join(number(1, d) for d in dim) + number(2, 1) + field(8, name) + field(9, b"\0\0\0\x3f" * n))
                   for name, dim, n in ((b"frequencies", (4,), 4), (b"head.weight", (4, 3), 12)))
to = field(1, b"to") + number(3, 1) + bytes([20 << 3 & 127 | 128, 1, 2])
nodes = b"".join(field(1, b"".join(field(1, i) for i in inputs) + field(2, out) + field(4, op) + more) for inputs, out, op, more in (
    ((b"x",), b"f", b"Cast", field(5, to)), ((b"f", b"frequencies"), b"angle", b"Mul", b""), ((b"angle",), b"c", b"Cos", b""),
    ((b"c", b"head.weight"), b"y", b"MatMul", b"")))
open("angles.onnx", "wb").write(field(7, nodes + tensors + field(11, ids) + field(12, field(1, b"y"))) + field(8, number(2, 17)))

# weights that an exporter numbers, in modules that its nodes name; the third's name is another's
row = field(1, b"x") + field(2, field(1, number(1, 1) + field(2, field(1, field(2, b"rows")) + field(1, number(1, 4)))))
tensors = b"".join(field(5, number(1, 4) + number(1, 4) + number(2, 1) + field(8, name) + field(9, b"\0\0\0\x3f" * 16))
                   for name in (b"val_3", b"onnx::MatMul_9", b"val_7"))
scopes = field(9, field(1, b"pkg.torch.onnx.name_scopes") + field(2, b"['', 'm', 'm.0', 'linear']"))
nodes = b"".join(field(1, b"".join(field(1, i) for i in inputs) + field(2, out) + field(3, name) + field(4, b"MatMul") + more)
                 for inputs, out, name, more in (((b"x", b"val_3"), b"a", b"one", scopes), ((b"a", b"onnx::MatMul_9"), b"b", b"/m/1/MatMul", b""),
                                                 ((b"b", b"val_7"), b"y", b"three", scopes)))
graph = field(7, nodes + tensors + field(11, row) + field(12, field(1, b"y")))
open("numbered.onnx", "wb").write(graph + field(8, number(2, 17)))
open("foreign.onnx", "wb").write(graph + field(8, field(1, b"ai.onnx.ml") + number(2, 3)))
open("opset.onnx", "wb").write(graph)
PY
run 0 explain --model numbered.onnx --loss mse --params
[[ $(grep -oE "^(m\.[01]\.weight|val_7|val_3|onnx\S*)" "$OUT" | tr '\n' ' ') == "m.0.weight m.1.weight val_7 " ]] || fail "weights have other names than in their modules"
refuse 2 "ops of the domain 'ai.onnx.ml' alone" -- explain --model foreign.onnx --loss mse
refuse 2 "names no opset" -- explain --model opset.onnx --loss mse
run 0 explain --model angles.onnx --loss mse --params
shows "$OUT" head.weight
grep -q frequencies "$OUT" && fail "the frequencies of angles are trained"
refuse 2 bit.npz checksum -- train --model own_mlp.onnx --loss cross_entropy --data bit.npz "${FEW[@]}" --steps 2 --out none
refuse 2 "for a batch of 1: 'window.onnx': Conv node 'y': 'kernel_shape' is not its weight's" -- explain --model window.onnx --loss mse
refuse 2 unknown.onnx "op LSTM of node 'h'" "other nodes of unknown ops: 2" -- explain --model unknown.onnx --loss cross_entropy

# a Transformer of the exporter's small ops becomes what a built-in one is: nothing stands between a layer and its activation or residual,
# and a weight's gradient is fp32 whatever its reader multiplies
run 0 explain --model "$DATA/onnx_vit.onnx" --loss cross_entropy --precision bf16 --after fuse --json
python3 - "$OUT" <<'PY' || fail "an exported Transformer is not made of Mezzo's ops"
import collections, json, sys
rows = json.load(open(sys.argv[1]))["rows"]
ops = collections.Counter((row["phase"], row["op"]) for row in rows)
want = {"linear+gelu": 2, "linear+residual": 4, "attention": 2, "layernorm": 5, "permute": 1}
wrong = {op: ops["forward", op] for op, n in want.items() if ops["forward", op] != n}
wrong |= {"dw": row for row in rows if row["op"] in ("conv2d_dw", "linear_dw") and row["storage"] != "fp32"}
print(wrong, file=sys.stderr)
sys.exit(bool(wrong))
PY

# the other commands take it as they take a built-in model
own=(--model own_mlp.onnx --loss cross_entropy)
run 0 explain "${own[@]}" --precision bf16 --autocast.node_linear fp32 --device cpu
grep -q "linear  *node_linear  *fp32" "$OUT" || fail "a precision by the node's name is not taken"
run 0 memory "${own[@]}" --batch-size 32 --device cpu
run 0 bench --models own_mlp.onnx --loss cross_entropy --precisions fp32 --no-mfu --iters 2 --warmup 1 --device cpu --threads 1
shows "$OUT" "examples/s"
refuse 2 "no output of one number" -- bench --models own_mlp.onnx --no-mfu --device cpu --threads 1
run 1 verify "${own[@]}" --data a.npz --steps 4 --seeds 2 --batch-size 8 --device cpu --threads 1 --out verified
shows "$OUT" "accuracy difference" "not met"
refuse 2 "sweep does not support it" -- sweep --family own_mlp.onnx
run 0 train "${own[@]}" --data a.npz "${FEW[@]}" --steps 20 --lora-rank 2 --lora-modules 0 --out adapters
run 0 eval adapters --data a.npz
whole=$(grep loss "$OUT")
run 0 export adapters --onnx merged.onnx
run 0 train --model merged.onnx --loss cross_entropy --data a.npz "${FEW[@]}" --steps 1 --lr 0 --min-lr 0 --out merged
run 0 eval merged --data a.npz
[[ $(grep loss "$OUT") == "$whole" ]] || fail "adapters that were added to an exported file give another loss"
run 0 train "${own[@]}" --data a.npz "${FEW[@]}" --steps 4 --freeze '0,2' --out frozen
run 0 train "${own[@]}" --data a.npz "${FEW[@]}" --steps 4 --train '3.*' --out head
cmp -s frozen/checkpoints/step-00000004/model.safetensors head/checkpoints/step-00000004/model.safetensors ||
    fail "--train trains others than those that it names"
run 0 train "${own[@]}" --data a.npz "${FEW[@]}" --steps 4 --out all
cmp -s all/checkpoints/step-00000004/model.safetensors head/checkpoints/step-00000004/model.safetensors && fail "--train trains all"
run 0 train --init classes --data a.npz "${FEW[@]}" --steps 1 --lr 0 --min-lr 0 --out begun
run 0 eval classes --data a.npz
whole=$(grep loss "$OUT")
run 0 eval begun --data a.npz
[[ $(grep loss "$OUT") == "$whole" ]] || fail "a run that begins with another's weights has another loss"
refuse 2 train.parameters '"nope"' -- train "${own[@]}" --data a.npz "${FEW[@]}" --steps 4 --train nope --out none

# running statistics move with every batch, once also where a step is computed twice, and go into checkpoints
run 0 train --model own_norm.onnx --loss cross_entropy --data a.npz "${FEW[@]}" --steps 6 --out norm
run 0 train --model own_norm.onnx --loss cross_entropy --data a.npz "${FEW[@]}" --steps 6 --replay 1 --out twice
cmp -s norm/checkpoints/step-00000006/model.safetensors twice/checkpoints/step-00000006/model.safetensors ||
    fail "steps that are replayed move running statistics twice"
run 0 train --model own_norm.onnx --loss cross_entropy --data a.npz "${FEW[@]}" --steps 6 --lr 0 --min-lr 0 --out still
python3 - <<'PY' || fail "running statistics of a run are not what its batches make of them"
import json, struct
def read(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {k: struct.unpack(f"<{(v['data_offsets'][1] - v['data_offsets'][0]) // 4}f", data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
            for k, v in head.items() if k != "__metadata__"}
moved, still = read("norm/checkpoints/step-00000006/model.safetensors"), read("still/checkpoints/step-00000006/model.safetensors")
for name in ("running_mean", "running_var"):
    key = [k for k in still if k.endswith(name)][0]
    assert any(abs(x - float(name == "running_var")) > 1e-3 for x in still[key])  # torch begins with 0 and 1
    assert moved[key] != still[key]
PY
run 0 eval norm
whole=$(grep loss "$OUT")
run 0 export norm --onnx norm.onnx
run 0 train --model norm.onnx --loss cross_entropy --data a.npz "${FEW[@]}" --steps 1 --lr 0 --min-lr 0 --out norm2

# for use, batch norms take running statistics and nothing is dropped; own_mlp.onnx gets a dropout after its end
python3 - <<'PY'
def varint(x): return bytes([x & 127 | 128]) + varint(x >> 7) if x > 127 else bytes([x])
def part(field, data): return varint(field << 3 | 2) + varint(len(data)) + data
node = part(1, b"logits") + part(1, b"ratio") + part(1, b"trains") + part(2, b"dropped") + part(4, b"Dropout")
ratio = b"\x10\x01" + part(8, b"ratio") + part(9, b"\0\0\0\x3f")
trains = b"\x10\x09" + part(8, b"trains") + part(9, b"\1")
graph = part(1, node) + part(5, ratio) + part(5, trains) + part(12, part(1, b"dropped"))
open("drops.onnx", "wb").write(open("own_mlp.onnx", "rb").read() + part(7, graph))
PY
run 0 train --model drops.onnx --loss "cross_entropy(dropped)" --data a.npz "${FEW[@]}" --steps 2 --out drops
counts() { # OP FILE LOSS: how many nodes of a program that trains
    run 0 explain --model "$2" --loss "$3"
    grep -c "^$1 " "$OUT"
}
for mode in training evaluation; do
    n=$([[ $mode == training ]] && echo 1 || echo 0)
    run 0 export norm --onnx norm-$mode.onnx --mode $mode
    run 0 export drops --onnx drops-$mode.onnx --mode $mode
    [[ $(counts group_norm norm-$mode.onnx cross_entropy) -eq $n && $(counts dropout drops-$mode.onnx "cross_entropy(dropped)") -eq $n ]] ||
        fail "--mode $mode: $(cat "$OUT")"
done
cmp norm.onnx norm-training.onnx || fail "--mode training is not the default"
refuse 2 "--mode nonsense" -- export norm --onnx x.onnx --mode nonsense
refuse 2 "--mode is for" -- export norm --out folder --mode evaluation

# masks of infinities, computed ones and tables, are no faults
npz i.npz "x=f4,60x7,r()" "row=i8,60,i%3" "keep=i8,60x5,i%5!=1" "labels=i8,60,i%2*4"
run 0 train --model own_infinite.onnx --loss cross_entropy --data i.npz "${FEW[@]}" --steps 4 --out infinite
shows "$OUT" "skipped steps    0"

# the example does the same through the library
example=$(dirname "$MEZZO")/examples/own_model
if [[ -x $example ]]; then
    "$example" own_mlp.onnx a.npz cross_entropy by_c.onnx >"$OUT" 2>"$ERR" || fail "the example ends with an error"
    shows "$OUT" "by_c.onnx: loss"
    [[ -s by_c.onnx ]] || fail "the example wrote no file"
fi

# running statistics move by every rank's micro batches in their order, so any number of ranks has the same bits
if command -v mpirun >/dev/null && [[ -e $(dirname "$MEZZO")/mezzo_mpi.so ]]; then
    export OMP_WAIT_POLICY=passive MEZZO_JOB_SECRET=for-this-test OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    ranks() { timeout 100 mpirun --oversubscribe -n 2 "$MEZZO" "$@" >"$OUT" 2>"$ERR" </dev/null || fail "2 ranks: $*"; }
    norm=(train --model own_norm.onnx --loss cross_entropy --data a.npz "${FEW[@]}" --steps 4 --checkpoint-every 2 --reduce canonical)
    run 0 "${norm[@]}" --grad-accum 4 --out one
    for shard in none optimizer gradients parameters; do
        ranks "${norm[@]}" --grad-accum 2 --shard $shard --out "ranks-$shard"
        cmp -s one/checkpoints/step-00000004/model.safetensors "ranks-$shard/checkpoints/step-00000004/model.safetensors" ||
            fail "two ranks with --shard $shard have other weights or running statistics than one"
    done
    run 0 audit ranks-none --threads 1
    shows "$OUT" "confirmed:"
fi
