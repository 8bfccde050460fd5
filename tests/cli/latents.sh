# radio_unet on the latents of a trained kl_vae: made once and kept beside the data, resumed with the same bits, decoded by sample, and what is
# refused: another autoencoder than the run began with, one of other pictures, a run of something else.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
"$MEZZO" data radio --maps 9 --transmitters 2 --size 24 --extent 64 --seed 3 --out cities 2>&1 | grep -q "no libpng" && exit 77
FEW=(--data cities --batch-size 4 --eval-iters 2 --device cpu --threads 1 --precision fp32 --lr 2e-3 --warmup 2)
weights() { echo "$1/checkpoints/step-0000000$2/model.safetensors"; }

run 0 train --model kl_vae-tiny --model.latent_channels 2 "${FEW[@]}" --steps 4 --ema 0.5 --out vae
run 0 train --model radio_unet-tiny --latents vae "${FEW[@]}" --steps 6 --out whole
shows "$ERR" "24 x 24 pixels as latents of 12 x 12 x 2"
kept=(cities/latents-*.safetensors)
[[ ${#kept[@]} -eq 1 && -s ${kept[0]} && -s whole/latents.json ]] || fail "the latents are not kept"
cp "${kept[0]}" first
touch -r "${kept[0]}" before

# Another run reads what is there; interrupted and whole give the same weights.
run 0 train --model radio_unet-tiny --latents vae "${FEW[@]}" --steps 3 --schedule.steps 6 --out half
run 0 train --config half/config.yaml --resume auto --steps 6
cmp "$(weights whole 6)" "$(weights half 6)" || fail "a resumed run has other weights"
[[ ! ${kept[0]} -nt before ]] || fail "the latents were made again"

# Two ranks, of which the first makes the latents, have the weights of one.
if command -v mpirun >/dev/null && [[ -e $(dirname "$MEZZO")/mezzo_mpi.so ]]; then
    export OMP_WAIT_POLICY=passive MEZZO_JOB_SECRET=for-this-test OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    PARTS=(train --model radio_unet-tiny --latents vae "${FEW[@]}" --batch-size 2 --global-batch 4 --reduce canonical --steps 2)
    mv "${kept[0]}" aside
    timeout 100 mpirun --oversubscribe -n 2 "$MEZZO" "${PARTS[@]}" --out two >"$OUT" 2>"$ERR" </dev/null || fail "two ranks: exit $?"
    cmp first "${kept[0]}" || fail "two ranks make other latents"
    grep -q "computing latents again\|cannot keep latents" "$ERR" && fail "two ranks wrote at a time"
    mv aside "${kept[0]}"
    run 0 "${PARTS[@]}" --out one
    cmp "$(weights one 2)" "$(weights two 2)" || fail "two ranks have other weights than one"
fi

# What training drew is decoded too.
run 0 sample whole --out drawn --rows 4 --count 4
cmp drawn/sheet.png whole/samples/step-00000006.png || fail "the sheet of the last step is another than sample's"

# Pictures come out, of the data's size, scored as eval scores them; the loss is that of latents.
run 0 sample whole --out predicted --steps 3 --json
shows "$OUT" '"pictures": 2'
a=$(sed -n 's/.*"nmse": \([0-9.]*\).*/\1/p' "$OUT")
run 0 eval predicted --truth cities --json
b=$(sed -n 's/.*"nmse": \([0-9.]*\).*/\1/p' "$OUT")
awk -v a="$a" -v b="$b" 'BEGIN { exit !(a > 0 && a < b * 1.02 && b < a * 1.02) }' || fail "NMSE is $a by sample and $b by eval"
run 0 eval whole --json
shows "$OUT" '"images": 2'
scores=$(grep -E '"(nmse|rmse|ssim|psnr)"' "$OUT" | tr -d ' ,')
[[ -n $scores ]] || fail "eval scores no pictures of latents"
run 0 sample whole --out of_eval --json
[[ $(grep -E '"(nmse|rmse|ssim|psnr)"' "$OUT" | tr -d ' ,') == "$scores" ]] || fail "eval scores other pictures than sample"
run 0 eval whole --iters 1 --json
! grep -q nmse "$OUT" || fail "random batches have no scores"
"$MEZZO" data radio --maps 2 --size 24 --extent 64 --seed 8 --out others >/dev/null
run 0 sample whole --out of_others --data others --json
shows "$OUT" '"pictures": 2'
ls others/latents-*.safetensors >/dev/null || fail "latents of other data are not kept beside them"

# A damaged file is seen and made again, with the same bits; so are latents of pictures that have changed.
printf x | dd of="${kept[0]}" bs=1 seek=2000 conv=notrunc status=none
run 0 eval whole
shows "$ERR" "computing latents again" "checksum"
cmp first "${kept[0]}" || fail "made again, they are others"
cp cities/gain/DPM/0_0.png saved.png
cp cities/gain/DPM/1_1.png cities/gain/DPM/0_0.png
run 0 eval whole
shows "$ERR" "computing latents again" "other pictures"
cp saved.png cities/gain/DPM/0_0.png

# A run keeps the autoencoder that it began with, also when that one is trained on, for as long as its checkpoint is there; another is refused.
run 0 train --config vae/config.yaml --resume auto --steps 5
run 0 eval whole --json
[[ $(grep -E '"(nmse|rmse|ssim|psnr)"' "$OUT" | tr -d ' ,') == "$scores" ]] || fail "pictures are decoded by another autoencoder"
cp -r half went_on
run 0 train --config half/config.yaml --resume auto --steps 7 --out went_on
rm -r vae/checkpoints/step-00000004
refuse 2 data.latents CRC32C -- train --config half/config.yaml --resume auto --steps 7
refuse 2 data.latents CRC32C -- sample whole --out none
refuse 2 data.latents "of step 4 with CRC32C" vae/checkpoints/step-00000005 -- eval whole
run 0 train --model radio_unet-tiny --latents vae "${FEW[@]}" --steps 1 --out anew
[[ $(ls cities/latents-*.safetensors | wc -l) -eq 2 ]] || fail "two autoencoders have two files"
rm anew/latents.json
refuse 2 anew/latents.json missing -- sample anew --out none

# Noise and picture apart (decoupled diffusion), on latents.
run 0 train --model radio_unet-tiny --model.objective decoupled --latents vae "${FEW[@]}" --steps 2 --out apart
run 0 eval apart --json
shows "$OUT" '"nmse"' '"images": 2'

refuse 2 data.latents kl_vae radio_unet -- train --model radio_unet-tiny --latents whole "${FEW[@]}" --steps 1 --out none
refuse 2 data.latents radio_unet -- train --model kl_vae-tiny --latents vae "${FEW[@]}" --steps 1 --out none
refuse 2 data.latents radio_unet gpt2 -- train --model gpt2 --latents vae --data cities --device cpu --out none
refuse 2 data.latents nowhere -- train --model radio_unet-tiny --latents nowhere "${FEW[@]}" --steps 1 --out none
"$MEZZO" data radio --maps 3 --size 16 --extent 64 --out small >/dev/null
refuse 2 data.latents "24 x 24 x 1" "16 x 16 x 1" -- train --model radio_unet-tiny --latents vae "${FEW[@]}" --data small --steps 1 --out none
refuse 2 "latents are 12 x 12 x 2" -- train --model radio_unet-tiny --latents vae "${FEW[@]}" --model.image_size 24 --steps 1 --out none
[[ ! -e none ]] || fail "something was written"
exit 0
