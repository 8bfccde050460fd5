# A run's page and its numbers in the terminal. In a browser, where there is one: every chart is drawn, pointing at it and the arrow
# keys show values, nothing is complained of, no network is asked for, and a hundred thousand steps are thinned.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 200 >text.txt

train() { # precision folder
    run 0 train "${TINY[@]}" --data text.txt --steps 40 --log-every 1 --eval-every 10 --sample-every 20 --init-scale 1e12 \
        --precision "$1" --out "$2" --device cpu --threads 1
}
train fp16 low
train fp32 full

run 0 watch low --once
shows "$OUT" "low, fp16 on" "step 40 of 40 (100 %), ended" "training loss" "loss scale" "skipped steps" "!" "▁" "constant" "lowest to highest"
! grep -q "e+" "$OUT" || fail "watch writes 72 as one and 1.7e+02 as the next"
[[ $(LC_ALL=C.UTF-8 wc -L <"$OUT") -le 80 ]] || fail "watch is wider than 80 columns"
if command -v script >/dev/null; then # on a terminal the last line says what is true of the run
    (sleep 2; printf q) | script -qc "stty cols 80; $MEZZO watch low" typed >/dev/null 2>&1
    grep -q "press q to quit)" typed || fail "watch says that a run continues that has ended"
    cp -r low going
    sed -i 's/^  steps: 40/  steps: 4000/; 1d' going/config.yaml
    touch going/metrics.jsonl
    (sleep 2; printf q) | script -qc "stty cols 80; $MEZZO watch going" typed >/dev/null 2>&1
    grep -q "the run continues" typed || fail "watch does not say that a run continues"
fi
mkdir empty
run 0 watch empty --once
shows "$OUT" "no records yet" "no verdict: nothing has been reported yet"
refuse 2 "run folder" -- watch
refuse 2 absent -- watch absent
refuse 2 text.txt -- watch text.txt
refuse 2 "--interval" -- watch low --interval 0

run 0 report low
shows "$OUT" low/report.html
shows low/report.html '"precision":"fp16"' '"model":"gpt2: ' '"device":"' '"op":"layernorm"' '"module":"h.*.' '"skips":[[1,1]'
run 0 report full low --compare --out both.html
run 0 report full low
shows "$OUT" full/report.html low/report.html
refuse 2 "--compare" -- report low --compare
refuse 2 "--out" "--compare" -- report low full --out page.html
refuse 2 "run folder" -- report
refuse 2 "metrics.jsonl" -- report empty
refuse 2 absent -- report absent
cp -r low torn
printf '{"step": 41, "train/lo' >>torn/metrics.jsonl
run 0 report torn # a line that a crash tore is left out
sed -i '3s/.*/nonsense/' torn/metrics.jsonl
run 0 report torn
shows "$ERR" "torn/metrics.jsonl:3: not a record" "left out"
cp -r low odd # a value that cannot be is named once, and the rest is shown
printf '{"step": 41, "train/loss": 1.0, "amp/precision": "constructor"}\n{"step": 41, "train/loss": "low"}\n' >>odd/metrics.jsonl
run 0 report odd
shows "$ERR" "odd/metrics.jsonl:$(($(wc -l <odd/metrics.jsonl) - 1)): key 'amp/precision'" "constructor" "left out, as are 1 more"
shows odd/report.html '"precision":"fp16"' '"last_step":41'
run 0 watch odd --once
shows "$ERR" "key 'amp/precision'"

# A text that would end the script, and one with markup, stay texts.
cp -r low marked
printf '{"step": 41, "sample/text": "</script><script>window.problems.push(1)</script><b>"}\n' >>marked/metrics.jsonl
run 0 report marked

mkdir long
awk 'BEGIN { for (i = 1; i <= 100000; i++) printf "{\"step\": %d, \"train/loss\": %.6f, \"amp/loss_scale\": %d, \"amp/skipped_steps\": %d}\n", i, 4 * exp(-i / 3e4) + (i == 50000 ? 3 : 0), 65536, (i >= 70000) }' >long/metrics.jsonl
run 0 report long
[[ $(stat -c %s long/report.html) -lt 1000000 ]] || fail "a page of 100,000 steps is not thinned"

# The page's numbers are those that train prints.
run 0 train "${TINY[@]}" --data text.txt --steps 25 --log-every 10 --eval-every 0 --precision fp32 --out told --device cpu --threads 1 --json
cp "$OUT" told.json
run 0 report told
same() { # key of train's JSON, key of the page
    local a b
    a=$(sed -n "s/.*\"$1\": \([0-9.e+-]*\).*/\1/p" told.json) b=$(sed -n "s/.*\"$2\":\([0-9.e+-]*\).*/\1/p" page.json)
    awk -v a="$a" -v b="$b" 'BEGIN { exit !(a > 0 && a - b < 1e-6 * a && b - a < 1e-6 * a) }' || fail "$1 is $a of train and $b on the page"
}
grep -o '"last_step":.*"skips"' told/report.html >page.json
same loss loss
same tokens_per_second speed
same memory_bytes memory
same val_loss last

for name in chromium chromium-browser google-chrome; do
    browser=$(command -v "$name") && break
done
[[ -n ${browser:-} ]] || exit 0

cat >head.js <<'JS'
<script>
window.problems = [];
window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 16); // without a screen there are no frames
window.onerror = (message) => window.problems.push(String(message));
console.error = console.warn = (...words) => window.problems.push(words.join(" "));
</script>
JS
cat >tail.js <<'JS'
<script>
addEventListener("load", async () => {
    const wait = () => new Promise((done) => setTimeout(done, 100));
    const result = { charts: [], hover: [], keys: [], points: 0 };
    await wait();
    for (const chart of window.mezzoCharts) {
        const canvas = chart.canvas, box = canvas.getBoundingClientRect(), figure = canvas.closest("figure"), caption = figure.querySelector("figcaption");
        result.charts.push(figure.id);
        result.points = Math.max(result.points, ...chart.data.datasets.map((set) => set.data.length));
        const places = chart.getDatasetMeta(0).data.filter((place) => Number.isFinite(place.y));
        const place = places[Math.floor(places.length / 2)];
        const at = { clientX: box.left + place.x, clientY: box.top + place.y, bubbles: true };
        canvas.dispatchEvent(new MouseEvent("mousemove", at));
        await wait();
        result.hover.push(figure.id + "=" + (chart.tooltip.opacity > 0 ? chart.tooltip.body.map((line) => line.lines.join()).join("; ") : "none"));
        canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true }));
        canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true }));
        await wait();
        result.keys.push(caption.textContent);
    }
    const pre = document.createElement("pre");
    pre.id = "result";
    pre.textContent = JSON.stringify({ ...result, problems: window.problems, asked: performance.getEntriesByType("resource").length });
    document.body.appendChild(pre);
});
</script>
JS
browse() { # page: what the browser saw of it, as one line of JSON in $OUT
    last="$browser $1"
    sed -e '/http-equiv="Content-Security-Policy"/d' -e '/<head>/r head.js' -e '/^<\/body>/{
r tail.js
N
}' "$1" >browse.html
    timeout 100 "$browser" --headless --no-sandbox --disable-gpu --virtual-time-budget=60000 --window-size=1200,900 \
        --user-data-dir="$SCRATCH/profile" --dump-dom "file://$PWD/browse.html" >dom 2>"$ERR"
    sed -n 's/.*<pre id="result">\(.*\)<\/pre>.*/\1/p' dom | sed 's/&gt;/>/g; s/&lt;/</g; s/&amp;/\&/g' >"$OUT"
    [[ -s $OUT ]] || fail "the browser did not come to the end of $1"
}

browse low/report.html
shows "$OUT" '"problems":[]' '"asked":0' chart-loss chart-lr chart-norm chart-scale chart-throughput chart-step "training " "validation "
for folded in chart-memory chart-rollbacks chart-validation; do # what never changes is a line of a table; one chart has both losses
    ! grep -q "$folded" "$OUT" || fail "$folded is drawn"
done
shows dom "did not change" "Rollbacks" "Samples" "seed" "started" "text.txt"
[[ $(grep -n 'id="samples-section"' low/report.html | cut -d: -f1) -lt $(grep -n 'id="charts"' low/report.html | cut -d: -f1) ]] || fail "the samples come after the curves"
! grep -q '=none' "$OUT" || fail "pointing at a chart shows no value"
[[ $(grep -o '"step [0-9]*: ' "$OUT" | wc -l) -ge 8 ]] || fail "the arrow keys show no values"
shows low/report.html '"decision":"' # which precision ran, and why

# With its policy the page runs its own parts and nothing that came in from elsewhere.
load() { # page: its document after it ran, and what the browser complains of
    timeout 100 "$browser" --headless --no-sandbox --disable-gpu --virtual-time-budget=10000 --enable-logging=stderr \
        --user-data-dir="$SCRATCH/profile" --dump-dom "file://$PWD/$1" >dom 2>"$ERR"
}
load low/report.html
shows dom 'id="chart-loss"' 'id="health"'
! grep -q "Content Security Policy" "$ERR" || fail "the page breaks its own policy"
sed 's|</body>|<script>document.title = "taken"</script><img src="http://127.0.0.1:9/x.png">&|' low/report.html >taken.html
load taken.html
! grep -q "<title>taken" dom || fail "a script that came in from elsewhere ran"
[[ $(grep -c "Content Security Policy" "$ERR") -ge 2 ]] || fail "the policy stops nothing"

run 0 train "${TINY[@]}" --data text.txt --steps 20 --log-every 1 --eval-every 10 --precision fp32 --out half --device cpu --threads 1
# Losses of tokens and of examples are not compared.
run 0 train --model toy --steps 20 --log-every 1 --precision fp32 --sample-every -1 --out toy --device cpu --threads 1
run 0 report low toy --compare --out unlike.html
shows unlike.html '"meetings":[],"differences":{}' "of \" + run.unit"
run 0 report full half --compare --out unequal.html # 40 steps and 20: compared at 20
shows unequal.html '"meetings":[{"step":20,"name":"train/loss"'
browse unequal.html
shows "$OUT" '"problems":[]' chart-difference
shows dom "at step 20"
browse both.html
shows "$OUT" '"problems":[]' '"asked":0' chart-difference "full: " "low: "
browse marked/report.html
shows "$OUT" '"problems":[]'
browse long/report.html
shows "$OUT" '"problems":[]' '"asked":0' chart-loss
points=$(sed 's/.*"points":\([0-9]*\).*/\1/' "$OUT")
[[ $points -gt 1000 && $points -le 2002 ]] || fail "$points points are drawn"
