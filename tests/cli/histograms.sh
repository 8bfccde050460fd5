# Histograms of magnitudes during training: the same run with and without, and TensorBoard's own reader on them.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 200 >text.txt

run 0 train "${TINY[@]}" --data text.txt --steps 6 --precision fp16 --out with --histograms-every 3 --grad-accum 2 --quiet
run 0 train "${TINY[@]}" --data text.txt --steps 6 --precision fp16 --out without --grad-accum 2 --quiet
losses() { sed -nE 's/.*"step": ([0-9]+).*"train\/loss": ([0-9.e+-]+).*/\1 \2/p' "$1/metrics.jsonl"; }
[[ -n $(losses with) && $(losses with) == "$(losses without)" ]] || fail "counting changed the losses"

[[ -n ${MEZZO_PYTHON:-} ]] || exit 0
"$MEZZO_PYTHON" - with <<'PY' || fail "TensorBoard reads something else"
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
run = EventAccumulator(sys.argv[1], size_guidance={"histograms": 0})
run.Reload()
tags = run.Tags()["histograms"]
for group in ("gradients_log2/", "activations_log2/", "activation_gradients_log2/"):
    assert any(tag.startswith(group) for tag in tags), (group, tags)
for tag in tags:
    events = run.Histograms(tag)
    assert [e.step for e in events] == [3, 6], tag
    for e in events:
        h = e.histogram_value
        assert sum(h.bucket) == h.num and all(limit == int(limit) for limit in h.bucket_limit), tag
        assert h.bucket[0] == 0 and h.bucket[1] > 0, tag  # an empty bucket is the left edge of the first that counts
wte = next(t for t in tags if t.startswith("gradients_log2/") and t.endswith("wte.weight"))
h = run.Histograms(wte)[0].histogram_value
assert h.num > 100 and -60 < h.min < h.max < 10, h
PY
