# The lessons: the numbers that they must show, JSON, a figure, and what is refused.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

run 0 lab formats
shows "$OUT" fp64 tf32 bf16 fp8_e4m3 nvfp4 65504 5.96046e-08
run 0 lab formats --json
shows "$OUT" '"finite_values": 63487' '"rounds_to_zero": 2.98023'
run 0 lab formats --value 1.2e-7
shows "$OUT" 1.1920929e-07 "0 00000 0000000010" subnormal underflow
run 0 lab formats --value -inf --json
shows "$OUT" '"fate": "overflow"' '"hex": "0xFC00"' '"value": null'

run 0 lab accumulate
shows "$OUT" 10.0001335144 9.9531250000 10.0021362305 4.0000000000 10.0097656250
[[ $(grep -cE '^(fp16|bf16) (kahan|pairwise) +10\.0000000000 +0 ' "$OUT") -eq 4 ]] || fail "a compensated or pairwise sum in 16 bits loses something"
run 0 lab accumulate --value 0.1 --count 10 --json
shows "$OUT" '"way": "bf16 stochastic"' '"stalled_after": null'

run 0 lab overflow
shows "$OUT" 11.0899 "step skipped" 4194304 "       512"
run 0 lab overflow --value 1 --count 0 --growth-interval 1000 --json
shows "$OUT" '"scale": 65536' '"skipped": true' '"softmax"'
run 0 lab layernorm
shows "$OUT" inf nan 16384
run 0 lab layernorm --json
shows "$OUT" '"format_mean": null' '"width": 16384'

run 0 lab underflow --steps 3
shows "$OUT" "gradients of weights" "gradients of activations" "c_attn.weight" "99.9 %" "of a small GPT"
run 0 lab underflow --steps 2 --loss-scale 1024 --json
shows "$OUT" '"loss_scale_log2": 10' '"lost_percent"' '"counts_up_to_log2"' '"kind": "activations"'
text 100 >text.txt
run 0 train "${TINY[@]}" --data text.txt --steps 4 --out run --quiet
run 0 lab underflow --precision fp8 --steps 3 --count 12
shows "$OUT" "in fp8" "rounded to 8 bits" fp8_e4m3 "attn.c_attn.dy" " more"
run 0 lab underflow run --count 3
shows "$OUT" "step 5 of run"

run 0 lab clipping --json
awk '/"update"/ { n++; v[n] = $2 + 0 } END { exit !(n == 2 && v[1] == 0.25 && v[2] > 1.5e-5 && v[2] < 1.6e-5) }' "$OUT" || fail "clipping's updates"
run 0 lab overflow --value 1 --count 0 --init-scale 1048576 --scale-only
shows "$OUT" 1048576 "step skipped"
run 0 lab speed --steps 12 --layers 1 --d-model 32 --batch-size 2 --device cpu
shows "$OUT" fp32 bf16 fp16 "ms/step"
run 0 lab speed --steps 10 --layers 1 --d-model 32 --batch-size 2 --device cpu --precision bf16 --target 0.001 --json
shows "$OUT" '"steps_to_target": 0' '"seconds_to_target": null' '"target": 0.001'

if command -v gnuplot >/dev/null; then
    for lesson in formats accumulate underflow overflow layernorm; do
        run 0 lab "$lesson" --plot "$lesson.svg"
        [[ -s $lesson.svg && -s $lesson.png && -s $lesson.gp ]] || fail "no figure of $lesson"
        ! grep -q "NaN\|nan" "$lesson.svg" || fail "$lesson.svg shows a NaN"
    done
fi

refuse 2 --steps -- lab speed --steps 5
refuse 2 "takes no run" -- lab formats run
refuse 2 "power of two" -- lab underflow --loss-scale 1000
refuse 2 --steps -- lab underflow --steps 0
refuse 2 "nowhere" -- lab underflow nowhere
refuse 2 "name a demonstration" formats -- lab
refuse 2 formats -- lab format
refuse 2 --count formats -- lab formats --count 3
refuse 2 --value ten -- lab formats --value ten
refuse 2 --count -- lab accumulate --count 0
refuse 2 --plot .svg -- lab formats --plot figure.pdf
refuse 3 none -- lab formats --plot none/at/all.svg
