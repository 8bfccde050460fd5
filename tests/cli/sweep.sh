# sweep: the rows, the ladder, going on after twenty kills at random moments, and what is refused. No time is asserted.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

GRID=(sweep --family gpt2 --layers 1,2 --d-models 16,32 --batch-sizes 1,2 --seq-lens 8,16 --vocab 60 --precisions fp32,bf16
    --device cpu --threads 1 --energy-seconds 0.01 --warmup 1 --iters 3)
HEADER=layers,d_model,bs,seqlen,prec,model,effective,rung,ga,final_bs,final_seqlen,recompute,params_m,tps,step_ms,cv,mem_gb,energy_j,avg_power_w,celsius,clock_mhz,loss,overflow,order,seconds,note,env,times
whole() { # FILE ROWS: a header and so many rows, none twice, every line whole
    [[ $(head -n 1 "$1") == "$HEADER" ]] || fail "the header of $1"
    [[ $(wc -l <"$1") -eq $(($2 + 1)) ]] || fail "$1 has not $2 rows"
    [[ $(cut -d, -f1-5 "$1" | sort -u | wc -l) -eq $(($2 + 1)) ]] || fail "a row of $1 is there twice"
    [[ $(grep -c ']"$' "$1") -eq $2 ]] || fail "a line of $1 is torn"
}

run 0 "${GRID[@]}" --out one.csv
shows "$ERR" "32 rows" "32/32" left
whole one.csv 32
grep -q ',0,0,' <(cut -d, -f18-19 one.csv) && fail "an energy of 0 where nothing can be read"
run 0 "${GRID[@]}" --out one.csv --json # all there
shows "$OUT" '"measured_now": 0' '"rows": 32'
shows "$ERR" "32 of them measured already"
run 0 "${GRID[@]}" --out two.csv --quiet
[[ ! -s $ERR ]] || fail "progress in spite of --quiet"
cmp -s <(cut -d, -f1-5 one.csv) <(cut -d, -f1-5 two.csv) || fail "the same seed gave another order"
cmp -s <(cut -d, -f1-5 one.csv) <(cut -d, -f1-5 one.csv | sort) && fail "the order is not random"
awk -F, 'NR > 1 && NR % 2 == 1 && $1 FS $2 FS $3 FS $4 != last { exit 1 } { last = $1 FS $2 FS $3 FS $4 }' one.csv ||
    fail "the two precisions of a shape are not neighbours"
run 0 analyze one.csv --out analysis --json
shows "$OUT" '"pairs": 16' '"rows_without_partner": 0'

# A torn line is dropped and measured again; a larger grid goes on in the same file.
head -c -20 two.csv >torn.csv
run 0 "${GRID[@]}" --out torn.csv --json
shows "$OUT" '"measured_now": 1'
whole torn.csv 32
run 0 "${GRID[@]}" --out torn.csv --precisions fp32,bf16,fp16 --json
shows "$OUT" '"measured_now": 16' '"rows": 48'
whole torn.csv 48

# As a spreadsheet on Windows saves it: a byte order mark and CRLF.
{ printf '\xEF\xBB\xBF' && sed 's/$/\r/' one.csv; } >windows.csv
run 0 "${GRID[@]}" --out windows.csv --precisions fp32,bf16,fp16 --json
shows "$OUT" '"measured_now": 16' '"rows": 48'
run 0 analyze windows.csv --out windows

# What a precision became is a row's note. Portable C has fp32 arithmetic alone, on every processor.
MEZZO_ISA=ref run 0 "${GRID[@]}" --layers 1 --d-models 16 --batch-sizes 1 --seq-lens 8 --precisions fp32,fp16 --out emulated.csv
[[ $(grep -c "fp16 storage with fp32 arithmetic" emulated.csv) -eq 1 ]] || fail "not one row of emulated fp16: $(cat emulated.csv)"

run 0 "${GRID[@]}" --layers 1 --d-models 16 --batch-sizes 1 --seq-lens 8 --precisions fp32,fp8,fp8-block --out eight.csv
[[ $(grep -c "as asked; emulated" eight.csv) -eq 2 ]] || fail "not two rows of emulated 8 bits: $(cat eight.csv)"
# What is offered next can be done, whatever was compared.
shows "$OUT" "analyze eight.csv"
run 0 analyze eight.csv --out eight
run 0 "${GRID[@]}" --layers 1 --d-models 16 --batch-sizes 1 --seq-lens 8 --precisions bf16,fp8-block,fp8 --out low.csv
shows "$OUT" "analyze low.csv --baseline bf16 --candidate fp8-block"
run 0 analyze low.csv --baseline bf16 --candidate fp8-block --out low

# Twenty kills at random moments: no row lost, none doubled.
RANDOM=7
kills=0 attempts=0
while ((kills < 20)); do
    ((++attempts < 400)) || fail "twenty kills took too many attempts"
    "$MEZZO" "${GRID[@]}" --out killed.csv >/dev/null 2>&1 &
    pid=$!
    sleep "0.0$((RANDOM % 9 + 1))$((RANDOM % 10))"
    if kill -KILL $pid 2>/dev/null && ! wait $pid 2>/dev/null; then
        ((++kills))
    else # it was through: once more from nothing
        wait $pid
        whole killed.csv 32
        rm killed.csv
    fi
done 2>/dev/null
run 0 "${GRID[@]}" --out killed.csv
whole killed.csv 32

# The ladder, by the plan's prediction; a shape that fits on no rung has a row without a time.
LADDER=(sweep --family gpt2 --layers 4 --d-models 32 --batch-sizes 4 --seq-lens 64 --vocab 100 --heads 4 --precisions fp32
    --device cpu --threads 1 --energy-seconds 0)
rungs=
for gb in 0.01 0.0024 0.0022 0.0020 0.0018 0.0016 0.0014 0.0013 0.0012 0.0011 0.0010 0.0008; do
    run 0 "${LADDER[@]}" --memory-gb "$gb" --out "ladder-$gb.csv"
    rungs+=" $(sed -n 2p "ladder-$gb.csv" | cut -d, -f8)"
done
for rung in base recompute ga2 half_batch half_seq none; do
    [[ $rungs == *" $rung"* ]] || fail "no memory led to $rung:$rungs"
done
[[ $(sed -n 2p ladder-0.0008.csv | cut -d, -f8-15) == none,,,,,*,, ]] || fail "a row that fitted nowhere: $(cat ladder-0.0008.csv)"
shows "$ERR" "base needs" "fits on no rung"

# Refused.
refuse 2 "another --out" -- "${GRID[@]}" --out one.csv --family cs336
MEZZO_COMMIT=other refuse 2 "one.csv:2" "another --out" -- "${GRID[@]}" --out one.csv
refuse 2 "one.csv:2" '"vocab": 60' '"vocab": 61' -- "${GRID[@]}" --out one.csv --vocab 61
refuse 2 "one.csv:2" '"residual": "low"' "another --out" -- "${GRID[@]}" --out one.csv --residual low
refuse 2 "one.csv:2" '"heads": 2' "another --out" -- "${GRID[@]}" --out one.csv --heads 2
echo "a,b" >other.csv
refuse 2 other.csv "not a table of this sweep" -- "${GRID[@]}" --out other.csv
refuse 3 none/x.csv -- "${GRID[@]}" --out none/x.csv
refuse 2 --layers -- sweep --layers 4,x
refuse 2 --layers twice -- sweep --layers 4,4
refuse 2 --batch-sizes -- sweep --batch-sizes 0
refuse 2 --precisions -- sweep --precisions fp64
refuse 2 "did you mean --family" -- sweep --model kl_vae --out y.csv --device cpu
refuse 2 nothing -- sweep --family nothing --out y.csv --device cpu
for family in cs336 glm4_moe llama mistral mixtral qwen2 qwen3 qwen3_moe gemma gemma2 gemma3 phi3 smollm3 olmo2 gpt_neox llama-3.2-1B; do
    run 0 sweep --family $family --layers 1 --d-models 16,48 --batch-sizes 1 --seq-lens 8 --vocab 60 --precisions fp32 --device cpu --threads 1 \
        --energy-seconds 0 --warmup 0 --iters 3 --quiet --out $family.csv
    [[ $(awk -F, 'NR > 1 && $14 + 0 > 0' $family.csv | wc -l) -eq 2 ]] || fail "$family: $(cat $family.csv)"
done
refuse 2 "3 heads" "width 16" -- "${GRID[@]}" --out y.csv --heads 3
run 0 sweep --family gpt2 --layers 1 --d-models 16 --batch-sizes 1 --seq-lens 8 --vocab 60 --precisions fp32 --device cpu --threads 1 \
    --energy-seconds 0 --warmup 0 --iters 3 --out single.csv
shows "$OUT" "single.csv: 1 row, 1 of them"
! grep -q analyze "$OUT" || fail "a table of one precision is to be analyzed"
{ cat one.csv && sed -n 5p one.csv; } >double.csv
refuse 2 "double.csv:34" twice -- "${GRID[@]}" --out double.csv
exit 0
