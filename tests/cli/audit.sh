# Recorded traces of small PyTorch programs, each with one defect, and of correct ones of the same kind: the defect is
# found at the line that the program marks "# here: RULE", and the correct programs raise no alarm. tests/audit/record.sh
# recorded them.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
command -v xz >/dev/null || exit 77
tar -xJf "$MEZZO_TESTS/audit/traces.tar.xz" || fail "the traces cannot be unpacked"
programs=$MEZZO_TESTS/audit/programs wrong=0 right=0
for program in "$programs"/*_wrong.py; do
    name=$(basename "$program" .py)
    mark=$(grep -n '# here: ' "$program") || fail "$name marks no line"
    rule=${mark##*# here: } line=${mark%%:*}
    run 1 doctor --trace "$name" --assume cc=9.0
    shows "$OUT" "conflict 1, $rule: programs/$name.py:$line" "1 conflict"
    fits
    wrong=$((wrong + 1))
done
for program in "$programs"/*_right.py; do
    run 0 doctor --trace "$(basename "$program" .py)" --assume cc=9.0
    shows "$OUT" "no conflict"
    right=$((right + 1))
done
[[ $wrong -ge 20 && $right -eq $wrong ]] || fail "$wrong programs with a defect and $right without"

# JSON has the same findings.
run 1 doctor --trace clip_first_wrong/rank-0.json --json
shows "$OUT" '"kind": "clip-before-unscale"' '"file": "programs/clip_first_wrong.py"' '"conflicts": 1'

# So has the page, which runs nothing and asks for nothing.
run 1 doctor --trace clip_first_wrong --out page.html
shows page.html "clip-before-unscale: programs/clip_first_wrong.py:" "default-src 'none'"
grep -qE '<script|src=|href=' page.html && fail "the page has more than text and a style"
refuse 2 "--kernels and --out" -- doctor --out page.html

# Mezzo's kernels at the program's shapes.
run 0 doctor --trace odd_vocabulary_right --kernels --device cpu --json
shows "$OUT" '"precision": "bf16"'

# Hostile input: one line, and the exit code of a bad input.
refuse 2 "no trace" -- doctor --trace .
mkdir bad
cut() { python3 -c "import sys; sys.stdout.write(open('clip_first_wrong/rank-0.json').read()[:$1])" >bad/trace.json; }
cut 500
refuse 2 bad/trace.json -- doctor --trace bad/trace.json
edit() { # the trace with one text replaced
    sed "s/$1/$2/" clip_first_wrong/rank-0.json >bad/trace.json
    cmp -s bad/trace.json clip_first_wrong/rank-0.json && fail "nothing was replaced by $2"
}
edit '"mezzo_audit":1' '"mezzo_audit":2'
refuse 2 mezzo_audit -- doctor --trace bad/trace.json
edit '"region":0' '"region":7'
refuse 2 region ops -- doctor --trace bad/trace.json
edit '"kind":"clip"' '"kind":"surprise"'
refuse 2 "no such event" -- doctor --trace bad/trace.json
edit '"count":1' '"count":-1'
refuse 2 count -- doctor --trace bad/trace.json
edit 'programs' 'pro\\u001b[31mgrams'
run 1 doctor --trace bad/trace.json
grep -q $'\033' "$OUT" && fail "a file name drives the terminal"
edit 'programs' '<script>'
run 1 doctor --trace bad/trace.json --out page.html
grep -q '<script' page.html && fail "a file name is a part of the page's code"

# A step of 2 s, whose operations took 1 s when they were run again and take 0.5 s in bf16: 2 + 0.5 - 1 = 1.5 s. The median of its runs took
# 1.1 s, that in bf16 0.75 s: from 2 + 0.5 - 1.1 to 2 + 0.75 - 1; a CPU's bounds are at least 35 % below and 20 % above. Of fp32 no time is known.
python3 -c '
import json
trace = json.load(open("clip_first_wrong/rank-0.json"))
trace.update(step_seconds=2.0, replay={"now": {"seconds": 1.0, "spread": 0.1}, "bf16": {"seconds": 0.5, "spread": 0.5}})
json.dump(trace, open("bad/trace.json", "w"))
# On a GPU the host launches for 1.6 s of the 2 and the device is busy for 1: in bf16 the host takes 1.6 + 0.1 and 0.4 are left as they are.
trace["replay"]["now"]["launch_seconds"], trace["replay"]["bf16"]["launch_seconds"] = 0.5, 0.6
trace.update(device="cuda", capability=90, launch_seconds=1.6)
json.dump(trace, open("gpu.json", "w"))'
run 1 doctor --trace bad/trace.json --json
shows "$OUT" '"format": "bf16"' '"step_ms": 1500' '"least_ms": 975' '"most_ms": 1799.9'
grep -q '"format": "fp32"' "$OUT" && fail "a prediction without a time"
run 1 doctor --trace bad/trace.json
shows "$OUT" "wide bounds"
sed -i 's/"spread": 0.1/"spread": 1.7/' bad/trace.json
run 1 doctor --trace bad/trace.json --json
grep -q '"format": "bf16"' "$OUT" && fail "a prediction from runs that say nothing"
run 1 doctor --trace gpu.json --json
shows "$OUT" '"step_ms": 2100' '"launch_bound": true'

# Running: options, a program that is not there, one that is no PyTorch program, and a Python without torch.
refuse 2 "--steps" -- doctor --steps 3
# The command as it is installed: its module is found from where it lies, wherever the build is.
mkdir -p prefix/bin prefix/share/mezzo/python/mezzo
cp "$MEZZO" prefix/bin/mezzo && ln -s "$MEZZO_SOURCE/python/mezzo/audit" prefix/share/mezzo/python/mezzo/audit
MEZZO=$PWD/prefix/bin/mezzo
refuse 2 "name the program" -- doctor --run
refuse 2 "--run, --trace" -- doctor --run --trace x -- python3
refuse 2 absent-program -- doctor --run -- absent-program
refuse 2 "exit code 4" -- doctor --run -- sh -c 'exit 4'
if [[ -n ${MEZZO_PYTHON:-} ]] && ! "$MEZZO_PYTHON" -c 'import torch' 2>/dev/null; then
    refuse 2 "has no torch" -- doctor --run -- "$MEZZO_PYTHON" -c 'print(1)'
fi
# A torch of an earlier version, as far as the module looks at it.
mkdir -p old/torch
echo '__version__ = "1.13.1"' >old/torch/__init__.py
if [[ -n ${MEZZO_PYTHON:-} ]]; then
    PYTHONPATH=$PWD/old refuse 2 "torch 1.13.1 is too old" -- doctor --run -- "$MEZZO_PYTHON" -c 'import torch'
fi
