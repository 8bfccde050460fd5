"""check_tfevents.py FOLDER: TensorBoard's own reader on what test_python_readers.c wrote."""
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
run.Reload()
tags = run.Tags()
assert sorted(tags["scalars"]) == ["amp/enabled", "amp/skipped_steps", "train/loss"], tags

loss = {event.step: event.value for event in run.Scalars("train/loss")}
# Steps 0 … 4 of the first run; its steps 5 … 9 are gone, the resumed run's 5 … 7 are there.
assert loss == {step: step / 8 + (step >= 5) for step in range(8)}, loss
assert [event.value for event in run.Scalars("amp/enabled")] == [0, 0, 0, 1, 1, 1, 1, 1]

texts = {event.step: event.tensor_proto.string_val[0].decode() for event in run.Tensors("amp/precision")}
assert texts == {0: "fp16", 3: "bf16", 5: "bf16"}, texts

# Counts that came sorted: 5 in (-4, -3], 2 in (-2, -1], 1 in (-1, 0].
some = run.Histograms("log2/some")[-1].histogram_value
assert dict(zip(some.bucket_limit, some.bucket)) == {-4: 0, -3: 5, -2: 0, -1: 2, 0: 1}, some
assert (some.min, some.max, some.num, some.sum) == (-4, 0, 8, 5 * -3.5 + 2 * -1.5 - 0.5), some
assert run.Histograms("log2/none")[-1].histogram_value.num == 0
