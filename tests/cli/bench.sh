# Kernels are timed beside peaks; what is asked wrongly is refused by name.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

run 0 bench --kernels --op linear --shape 40x48x33 --precision fp32,bf16,tf32,fp16 --rounds 1 --device cpu --threads 1 --csv rows.csv
shows "$OUT" "peak GFLOP/s" "stream copy" 40x48x33 bf16
[[ $(head -n 1 rows.csv) == device,commit,model,op,shape,precision,kernel,* ]] || fail "the CSV has no header"
rows=$(wc -l <rows.csv)
run 0 bench --kernels --op layernorm --shape 64x40 --precision fp32,tf32 --rounds 1 --device cpu --threads 1 --csv rows.csv --json
shows "$OUT" '"kernels"' '"copy_gb_per_second"' '"unit": "GB/s"'
# Norms are FP32 under tf32 too: one row, and no second header.
[[ $(wc -l <rows.csv) -eq $((rows + 1)) ]] || fail "one row was expected to be added to the CSV"

# FP8's products, with a scale for each operand; of dw16's the weight gradient is bf16's, which is timed once.
for op in linear linear_dx linear_dw; do
    run 0 bench --kernels --op $op --shape 40x48x33 --precision bf16,fp8,fp8-dw16 --rounds 1 --device cpu --threads 1
    [[ $(grep -cE "^$op .* fp8 .*GFLOP/s" "$OUT") -eq 1 ]] || fail "$op in fp8 is not timed"
done
refuse 2 fp8-block "fp8 and fp8-dw16" -- bench --kernels --precision fp8-block
refuse 2 --kernels -- bench
refuse 2 attention -- bench --kernels --op atention
refuse 2 layernorm_bwd "use one of" -- bench --kernels --op xyzzyplugh
refuse 2 3x4 MxNxK -- bench --kernels --op linear --shape 3x4
refuse 2 3x0x4 -- bench --kernels --op linear --shape 3x0x4
refuse 2 --shape --op -- bench --kernels --shape 3x4x5
refuse 2 fp99 -- bench --kernels --precision fp99
refuse 2 gpt2-124M -- bench --kernels --model bert
refuse 2 --iters "not for --kernels" -- bench --kernels --iters 3
refuse 2 --kernels --models "choose one" -- bench --kernels --models small
refuse 2 --kernels --all-models "choose one" -- bench --all-models --kernels
refuse 2 64x128x2 768x3072x12x12 -- bench --models 64x128x2 --device cpu
refuse 3 no/such -- bench --kernels --op add --shape 3x4 --csv no/such/file.csv --device cpu
