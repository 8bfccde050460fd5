# bench --models: the table, what does not fit, what a precision became, and what is refused. No time is asserted.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

TINY_BENCH=(--context-length 16 --batch-size 2 --vocab 50 --warmup 1 --iters 2 --device cpu --threads 1 --no-mfu)
# By portable C, which has fp32 arithmetic alone on every processor.
MEZZO_ISA=ref run 0 bench --models 16x32x1x2,32x64x1x2 --family gpt2 --precisions fp32,bf16,fp16 "${TINY_BENCH[@]}" --csv rows.csv
shows "$OUT" 16x32x1x2 32x64x1x2 "fp16 storage with fp32 arithmetic"
shows "$ERR" "size 1 of 2, 16x32x1x2: timing fp32" "size 2 of 2, 32x64x1x2: timing fp16" # before its rows: a large one takes minutes
[[ $(wc -l <rows.csv) -eq 3 ]] || fail "not two rows"
header=$(head -n 1 rows.csv)
[[ $header == model_size,num_params_M,context_length,batch_size,fp32_forward_ms,fp32_forward_std,fp32_backward_ms,fp32_backward_std,fp32_total_ms,bf16_forward_ms,* ]] || fail "the header"
[[ $header == *,fp16_total_ms,forward_speedup,backward_speedup,total_speedup,* ]] || fail "the speedups' columns"
shows rows.csv "16x32x1x2,0.00," ",bf16,"
grep -q NaN rows.csv && fail "something is NaN although all of it fits"
if command -v gnuplot >/dev/null; then
    [[ -s rows.png && -s rows.svg && -s rows.gp ]] || fail "no chart"
    grep -q ">16x32x1x2<" rows.svg || fail "the sizes are not named as they are"
fi

# What does not fit is predicted, told and NaN; the run goes on.
run 0 bench --models 512x2048x8x8,16x32x1x2 --family cs336 --precisions fp32,bf16 "${TINY_BENCH[@]}" --memory-gb 0.01 --csv fit.csv
shows "$ERR" "512x2048x8x8 in fp32 not measured: does not fit"
grep -q "^512x2048x8x8,.*,NaN,NaN,NaN,NaN,NaN,.*does not fit: .* are free" fit.csv || fail "no row of NaN"
grep "^16x32x1x2" fit.csv | grep -q NaN && fail "the size that fits is NaN"

run 0 bench --models 16x32x1x2 --family gpt2 --precisions fp32 --phases forward "${TINY_BENCH[@]}" --json
shows "$OUT" '"num_params_M"' '"effective": "fp32"' '"step": {' '"ms": null'

refuse 2 "--models" -- bench
refuse 2 smal '"small"' -- bench --models smal
refuse 2 heads -- bench --models 16x32x1x3 --family gpt2
run 0 bench --models 16x32x1x2 --family gpt2 --precisions fp32,bf16 --optimizer muon --phases step "${TINY_BENCH[@]}" --json
shows "$OUT" '"optimizer": "muon"'
refuse 2 "adamw|sgd|lion|muon|normuon" -- bench --models 16x32x1x2 --family gpt2 --optimizer adam
run 0 bench --models 16x32x3x2 --family gpt2 --precisions fp8 --phases step --device cpu "${TINY_BENCH[@]}"
shows "$OUT" fp8
refuse 2 --precisions int8 -- bench --models small --precisions fp32,int8
refuse 2 --precisions twice -- bench --models small --precisions bf16,bf16
refuse 2 --phases -- bench --models small --phases sideways
refuse 2 --iters -- bench --models small --iters 0
refuse 2 --iters 1e-400 -- bench --models small --iters 1e-400
refuse 2 --rounds "is for --kernels" -- bench --models small --rounds many
refuse 2 nothing_like_it -- bench --models small --family nothing_like_it
refuse 3 none/x.csv -- bench --models 16x32x1x2 --family gpt2 --precisions fp32 "${TINY_BENCH[@]}" --csv none/x.csv
exit 0
