# analyze and advise: what a study makes, and what it refuses.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

study() { # a grid on which amp wins from 256 tokens on
    echo "layers,d_model,bs,seqlen,prec,tps,mem_gb,energy_j,avg_power_w,overflow,env,times"
    local layers d_model bs seqlen tokens
    for layers in 2 4; do for d_model in 128 256; do for bs in 1 2 4; do for seqlen in 64 128 256; do
        tokens=$((bs * seqlen))
        echo "$layers,$d_model,$bs,$seqlen,fp32,1000,2.0,$((tokens / 10)),100,1.0,\"{'gpu': 'x, y'}\",\"[$tokens.0e-3]\""
        echo "$layers,$d_model,$bs,$seqlen,amp,$((700 + tokens * 2)),1.5,,,65536.0,,"
    done; done; done; done
}
study >study.csv
run 0 analyze study.csv --out out
shows "$OUT" "Can amp be faster than fp32 here?" "36 exact-shape pairs" "Width 128: amp becomes faster at" "amp from"
for file in pairs_analysis.csv summary.json rules.json report.md decision_boundary.gp contours_d128.gp contours_d256.gp memory_saving.gp; do
    [[ -s out/$file ]] || fail "$file was not written"
done
[[ $(head -n 1 out/pairs_analysis.csv) == "layers,d_model,bs,seqlen,speedup_amp_over_fp32,mem_saving_pct,energy_gain_pct,tps_fp32,tps_amp,tokens_per_step,adj_amp,adj_fp32,ga_amp,ga_fp32" ]] || fail "the header of pairs_analysis.csv"
[[ $(wc -l <out/pairs_analysis.csv) -eq 37 ]] || fail "not 36 pairs"
if command -v gnuplot >/dev/null; then
    for figure in decision_boundary contours_d128 contours_d256 memory_saving; do
        [[ $(head -c 4 out/$figure.png | od -An -c | tr -d ' ') == 211PNG ]] || fail "$figure.png is no PNG"
        grep -q "</svg>" out/$figure.svg || fail "$figure.svg is no SVG"
    done
    [[ ! -s $ERR ]] || fail "something on stderr"
fi

# The mark of a crossing lies on the line through the medians: both axes of the figure are logarithmic, as the interpolation is.
grep -q "^set logscale y" out/decision_boundary.gp && grep -q "^set logscale x" out/decision_boundary.gp || fail "an axis is linear"
awk '/^\$w128 /{on=1; next} /^EOD/{on=0} on && !/^#/{ x = log($1); y = log($2); if (n++ && py < 0 && y >= 0) at = exp(px + (x - px) * py / (py - y)); px = x; py = y }
    /^\$(crossings|marks) /{marks=1; next} marks && !/^#/ && !/^EOD/ && at && !seen++ { d = $1 / at; if (d < 0.999 || d > 1.001) exit 1 } END { exit !(at && seen) }' \
    out/decision_boundary.gp || fail "a crossing is drawn beside its line"
# A cell that was not run is grey, its neighbours are drawn; noise is shown where there are timings.
awk -F, 'NR == 1 || !($2 == 128 && $3 == 2 && $4 == 128)' study.csv | sed -E 's/"\[[0-9.e-]*\]"$/"[0.9, 1.0, 1.1]"/; s/,,$/,,"[0.4, 0.5, 0.6]"/' | awk -F, 'NR == 1 || $1 == 2' >gaps.csv
run 0 analyze gaps.csv --out gaps
grep -A 1 '^\$missing' gaps/contours_d128.gp | grep -q "^1 7 0.5 1.5 6.5 7.5" || fail "the cell that was not run"
[[ $(sed -n '/^\$grid/,/^EOD/p' gaps/contours_d128.gp | grep -c "±") -eq 8 ]] || fail "a cell of one pair shows no noise"
# Standard errors of the means: 0.1 / √3 of 1.0 and of 0.5, so that of the speedup is √(0.1² + 0.2²) / √3. With 2 degrees of freedom each, the
# interval is 4.303 of the larger one wide and more (a t interval of that row alone), and less than 4.303 of both added.
awk '/^\$w128/{on=1; next} on && !/^#/{ e = log($7 / $6) / 2; exit !(e > 0.45 && e < 0.85) }' gaps/decision_boundary.gp || fail "the error bars"
shows "$OUT" "no crossing is established" "within the noise" "The pairs of a point are equal: no interval across shapes."
shows "$ERR" "the times of 34 rows vary by more than 10 %"
shows gaps/report.md "The times of 34 rows vary by more than 10 %" "95 % interval"
# Quiet steps carry the crossing: an interval by the timed steps, which says nothing of other shapes.
sed -E 's/"\[0.9, 1.0, 1.1\]"$/"[0.998, 1.0, 1.002]"/; s/"\[0.4, 0.5, 0.6\]"$/"[0.499, 0.5, 0.501]"/' gaps.csv | awk -F, 'NR == 1 || $3 == 1' >quiet.csv
run 0 analyze quiet.csv --out quiet
shows "$OUT" "becomes faster at" "by the timed steps)" "One pair a point: no interval across shapes."
# A speedup whose interval holds 1 is within the noise; a figure of single pairs has no quartiles.
printf '%s\n' layers,d_model,bs,seqlen,prec,tps,times 4,256,1,64,fp32,640,'"[0.1, 0.08, 0.12]"' \
    4,256,1,64,bf16,653,'"[0.098, 0.08, 0.116]"' >noisy.csv
run 0 analyze noisy.csv --out noisy
shows "$OUT" "bf16 is faster at every number of tokens measured, within the noise at 1 of 1."
shows noisy/decision_boundary.gp "of bf16 over fp32: 1 exact-shape pairs, one a point"
# What is slower first does not become slower again; without timings there is no interval at all.
printf '%s\n' "layers,d_model,bs,seqlen,speedup_amp_over_fp32" 4,256,1,64,1.5 4,256,1,128,0.8 4,256,1,256,1.4 >down.csv
run 0 analyze down.csv --out down
shows "$OUT" "amp becomes slower at 100 tokens per step; amp becomes faster again at" "One pair a point, and there are no repeated timings: no intervals."
! grep -q "95 % interval [0-9]* to [0-9]*[;)]" "$OUT" || fail "an interval from nothing"
if command -v gnuplot >/dev/null; then
    for figure in out/decision_boundary out/contours_d128 gaps/decision_boundary gaps/contours_d128; do
        (cd "${figure%/*}" && gnuplot "${figure#*/}.gp") 2>"$ERR" || fail "gnuplot does not draw $figure.gp"
        [[ ! -s $ERR ]] || fail "gnuplot complains of $figure.gp"
    done
fi
cp out/summary.json first.json
run 0 analyze study.csv --out out --json
shows "$OUT" '"pairs": 36' '"median_speedup"' '"direction": "up"'
cmp -s out/summary.json first.json || fail "the same file and seed gave another summary"
run 0 analyze out/pairs_analysis.csv --out from_pairs --json
shows "$OUT" '"pairs": 36'

# Without gnuplot everything but the pictures is there, and it is said.
mkdir empty
PATH=$SCRATCH/work/empty run 0 analyze study.csv --out bare
shows "$ERR" "no figures: gnuplot could not be started"
[[ -s bare/decision_boundary.gp && -s bare/report.md && ! -e bare/decision_boundary.png ]] || fail "without gnuplot"

run 0 advise --rules out/rules.json --d-model 128 --batch-size 1 --seq-len 64
[[ $(head -n 1 "$OUT") == fp32 ]] || fail "not fp32"
shows "$OUT" "confidence  faster in " "95 % CI"
run 0 advise --rules out/rules.json --d-model 128 --batch-size 4 --seq-len 256 --json
shows "$OUT" '"precision": "fp16"' '"confidence": 1.0' '"warning": null'
run 0 advise --rules out/rules.json --d-model 4096 --batch-size 4 --seq-len 256
shows "$OUT" "warning     extrapolating beyond the measured widths 128 to 256"
for shape in "4 256 fp16" "2 256 fp32" "2 320 fp16"; do
    read -r bs seqlen wanted <<<"$shape"
    run 0 advise --rules t4-glm4moe --d-model 512 --batch-size "$bs" --seq-len "$seqlen"
    [[ $(head -n 1 "$OUT") == "$wanted" ]] || fail "not $wanted"
done

run 0 advise --rules h200-gpt2 --model gpt2-124M --batch-size 4 --json
shows "$OUT" '"tokens_per_step": 4096'
run 0 advise --rules h200-gpt2 --model gpt2-124M --batch-size 4 --seq-len 256 --json
shows "$OUT" '"tokens_per_step": 1024'
refuse 2 --batch-size -- advise --rules h200-gpt2 --model gpt2-124M
refuse 2 qwen9 -- advise --rules h200-gpt2 --model qwen9 --batch-size 4
run 0 advise --rules h200-gpt2 --d-model 512 --batch-size 4 --seq-len 256
[[ $(head -n 1 "$OUT") == bf16 ]] || fail "not bf16"
shows "$OUT" "fp32 takes" "x the time" "x the memory"
"$MEZZO_SOURCE/scripts/rules.sh" "$MEZZO" --check >"$OUT" 2>&1 || fail "data/rules are not what bench/results give: scripts/rules.sh"

# Refused, each with its place.
refuse 2 "a CSV file is missing" -- analyze
refuse 2 nowhere.csv -- analyze nowhere.csv
: >empty.csv
refuse 2 empty.csv empty -- analyze empty.csv
sed 's/,tps,/,speed,/' study.csv >bad.csv
refuse 2 "'tps'" "--columns THEIRS=tps" -- analyze bad.csv
run 0 analyze bad.csv --columns speed=tps --out mapped --json
shows "$OUT" '"pairs": 36'
sed '4s/fp32,1000/fp32,fast/' study.csv >bad.csv
refuse 2 "bad.csv:" "'tps'" "'fast'" -- analyze bad.csv
sed '4s/fp32,1000/fp32,-1000/' study.csv >bad.csv
refuse 2 "bad.csv:4" "above 0" -- analyze bad.csv
sed '4s/\[.*\]/[0]/' study.csv >bad.csv
refuse 2 "bad.csv:4" "'times'" "above 0" -- analyze bad.csv
{ cat study.csv && sed -n 4p study.csv; } >bad.csv
refuse 2 "the same key twice" "line 4" -- analyze bad.csv
grep -v ",amp," study.csv >bad.csv
refuse 2 "nothing to compare" -- analyze bad.csv
sed 's/,amp,/,fp8,/' study.csv >eight.csv
run 0 analyze eight.csv --out eight
shows "$OUT" "Can fp8 be faster than fp32 here?"
{ cat study.csv && sed -n '/^2.*,amp,/s/,amp,/,fp8-block,/p' study.csv && sed -n '/^4.*,amp,/s/,amp,/,fp8,/p' study.csv; } >more.csv
run 0 analyze more.csv --out more
shows more/report.md "also has rows of fp8-block, fp8;"
sed 5d study.csv >alone.csv # a row without a partner is named, not fatal
run 0 analyze alone.csv --out alone
shows "$ERR" "left out 1 rows without a partner" "line 4"
shows alone/report.md "Rows without a partner"
refuse 2 "bf16" -- analyze study.csv --candidate bf16
refuse 2 --draws -- analyze study.csv --draws 3
: >file
refuse 3 file -- analyze study.csv --out file/x

# A device that no rules were measured on, on every machine.
MEZZO_ISA=ref CUDA_VISIBLE_DEVICES='' refuse 2 "no rules for this device" "--rules" -- advise
refuse 2 "--seq-len is missing" -- advise --rules t4-glm4moe --d-model 512 --batch-size 1
refuse 2 "--d-model 0" -- advise --rules t4-glm4moe --d-model 0 --batch-size 1 --seq-len 1
refuse 2 none.json "built-in rules: t4-glm4moe, h200-gpt2" -- advise --rules none.json --d-model 1 --batch-size 1 --seq-len 1
echo '{"format": "mezzo-rules", "version": 1}' >bad.json
refuse 2 bad.json "'name'" -- advise --rules bad.json --d-model 1 --batch-size 1 --seq-len 1
exit 0
