# Which of the libraries' plans is the fastest is measured in each process, and neighbours in time may change places. So a run that takes the
# slowest plan of those with the same bits must have every bit of a run that takes the fastest: losses, weights and moments. Needs a GPU.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
"$MEZZO" doctor --device cuda >"$OUT" 2>"$ERR"
[[ $? -le 1 ]] || exit 77
"$MEZZO" data radio --maps 6 --transmitters 2 --size 16 --extent 64 --seed 3 --out cities >"$OUT" 2>"$ERR" || exit 77
text 300 >text.txt

last="MEZZO_CUDA_WITHOUT=attention__none mezzo train"
MEZZO_CUDA_WITHOUT=early_launches,attention__none refuse 2 MEZZO_CUDA_WITHOUT attention__none -- train "${TINY[@]/#cpu/cuda}" --data text.txt --out none
last="MEZZO_CUDA_PLANS=quickest mezzo train"
MEZZO_CUDA_PLANS=quickest refuse 2 MEZZO_CUDA_PLANS quickest slowest -- train "${TINY[@]/#cpu/cuda}" --data text.txt --out none

bits() { # FOLDER: what the run computed
    grep -oE '"(train/)?loss": *[^,}]*' "$1/metrics.jsonl" | sha256sum
    sha256sum <"$1/checkpoints/step-00000006/model.safetensors"
    sha256sum <"$1/checkpoints/step-00000006/optimizer.safetensors"
}
same() { # PRECISION OPTION…: the run with either choice
    local precision=$1 plans
    shift
    for plans in fastest slowest first; do
        rm -rf "$plans"
        MEZZO_CUDA_PLANS=$plans "$MEZZO" train "$@" --batch-size 4 --grad-accum 2 --steps 6 --warmup 2 --log-every 1 --eval-every 0 --eval-final=false \
            --sample-every -1 --checkpoint-every 6 --precision "$precision" --device cuda --seed 7 --out "$plans" --quiet >"$OUT" 2>"$ERR" </dev/null ||
            fail "train $* --precision $precision with the $plans plans"
    done
    last="train $* --precision $precision"
    for plans in slowest first; do
        [[ $(bits fastest) == "$(bits $plans)" ]] || fail "other bits with the $plans plans: $* --precision $precision"
    done
}
for precision in tf32 bf16 fp16; do
    same $precision --model radio_unet-tiny --data cities
    same $precision --model kl_vae-tiny --data cities
    same $precision --model gpt2 --layers 2 --heads 4 --d-model 64 --seq-len 32 --data text.txt
done
