#!/usr/bin/env bash
# ranks [PART…]: bench/gpus.sh on all GPUs (gpus.csv): parts 8B, scaling, left, replay.
. "$(dirname "$0")/common.sh"
COMMIT=$commit LIMIT=$(left) capped 600 bash "$root/bench/gpus.sh" "$mezzo" "$text" "$out" "$@"
exit 0
