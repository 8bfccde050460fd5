#!/usr/bin/env bash
# ranks [PART…]: bench/gpus.sh on all GPUs (gpus.csv): parts scaling, replay, left, 8B.
. "$(dirname "$0")/common.sh"
COMMIT=$commit ROW_LIMIT=$(($(left) < 100 ? $(left) : 100)) capped 600 bash "$root/bench/gpus.sh" "$mezzo" "$text" "$out" "$@"
exit 0
