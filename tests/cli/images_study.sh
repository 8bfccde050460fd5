# What the commands of the study say of models of images: in images, by the validation loss, on a grid of pictures; and the grids that are refused.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
"$MEZZO" data radio --maps 9 --transmitters 2 --size 24 --extent 64 --seed 4 --out cities 2>&1 | grep -q "no libpng" && exit 77

RUN=(verify --model radio_unet-tiny --model.objective 4 --data cities --split 0.6 --batch-size 3 --steps 8 --eval-iters 0 --device cpu --threads 1
    --precision bf16 --min-speedup 0 --min-memory-reduction 1 --max-accuracy-difference 0.9)
run 0 "${RUN[@]}" --seeds 2 --out report
shows "$OUT" "throughput, images/s" "8 steps of 1 × 3 images" "8 validation images" "loss over fp32's, -1" "All requirements are met"
shows report/verify.json '"relative_loss_difference"' '"unit": "images"' '"accuracy": true'
shows report/verify.md "No right answers can be counted here"
grep -qE "accuracy fp32|context|vocabulary|nan" report/verify.md "$OUT" && fail "words about texts"
awk -F'|' '/^\| seed/ { n = NF } /^\| [0-9]/ { rows++; if (NF != n) exit 1 } END { exit rows != 2 }' report/verify.md || fail "the table of seeds"
run 1 "${RUN[@]}" --seeds 1 --out failed --max-accuracy-difference 0
shows failed/verify.json '"accuracy": false'

run 0 memory --model kl_vae --batch-size 3
shows "$OUT" "a micro batch of 3 images of 64 x 64 x 1"
grep -qE "logits|sampling" "$OUT" && fail "memory for logits or samples"
run 1 memory --model kl_vae --limit 1MiB
shows "$ERR" "for 1 image of 64 x 64 x 1"
run 0 memory --model mlp --batch-size 1
shows "$OUT" "a micro batch of 1 example;"
run 0 advise --measure --model radio_unet-tiny --batch-size 2 --device cpu
shows "$OUT" "images/s"
refuse 2 images --measure -- advise --model radio_unet --rules h200-gpt2 --d-model 64 --batch-size 8 --seq-len 64
run 0 bench --models kl_vae-tiny --precisions fp32 --batch-size 2 --warmup 0 --iters 1 --no-mfu --device cpu --phases forward
shows "$OUT" "images/s"

run 0 bench --models kl_vae-tiny --precisions fp32 --batch-size 2 --warmup 0 --iters 1 --no-mfu --device cpu --phases forward --csv bench.csv --json
[[ $(sed -n 2p bench.csv) == kl_vae-tiny,*,1,2,* ]] || fail "a context of pictures"
refuse 2 --context-length images -- bench --models kl_vae-tiny --context-length 64
refuse 2 --vocab images -- bench --models kl_vae-tiny --vocab 64

# A grid of pictures: blocks for layers, pixels for tokens, no half of a picture in the ladder.
GRID=(sweep --family radio_unet-tiny --blocks 1 --d-models 8 --batch-sizes 3 --image-sizes 16,20 --precisions fp32,bf16 --device cpu --threads 1
    --energy-seconds 0 --warmup 0 --iters 1)
run 0 "${GRID[@]}" --out grid.csv
shows "$ERR" "seqlen 400" "pixels/s"
[[ $(cut -d, -f1-4,11 grid.csv | sort -u | tail -n +1 | grep -c '^1,8,3,\(256,256\|400,400\)$') -eq 2 ]] || fail "the grid"
run 0 analyze grid.csv --out analysis --json
shows "$OUT" '"pairs": 2'
run 0 "${GRID[@]}" --out tight.csv --memory-gb 0.0001
cut -d, -f8 tight.csv | grep -q half_seq && fail "half of a picture"
refuse 2 --seq-lens --image-sizes -- sweep --family kl_vae --seq-lens 64 --out none.csv
refuse 2 --layers --blocks -- sweep --family radio_unet --layers 2 --out none.csv
refuse 2 --image-sizes --seq-lens -- sweep --family gpt2 --image-sizes 32 --out none.csv
refuse 2 vocabulary -- sweep --family kl_vae --vocab 50 --out none.csv
refuse 2 mlp "sweep does not support it" -- sweep --family mlp --out none.csv
refuse 2 image_size 15 -- "${GRID[@]}" --image-sizes 16,15 --out none.csv
refuse 2 groups -- "${GRID[@]}" --d-models 8,9 --out none.csv
[[ ! -e none.csv ]] || fail "a file of nothing"
exit 0
