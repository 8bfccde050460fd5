#!/usr/bin/env bash
# Records the traces of programs/ that cli/audit.sh replays: tests/audit/traces.tar.xz. It needs torch from PyPI.
#   tests/audit/record.sh PYTHON [NAME…]     a Python that has torch (and no GPU: the programs use the CPU); only these programs
set -euo pipefail
cd "$(dirname "$0")"
python=${1:?a Python that has torch}
shift
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export MEZZO_AUDIT_STEPS=3 MEZZO_AUDIT_STOP=0 MEZZO_AUDIT_COSTS=0 PYTHONPATH=$PWD/../../python/mezzo/audit/front OMP_NUM_THREADS=1
export PYTHONDONTWRITEBYTECODE=1
[[ $# -eq 0 ]] || tar -xJf traces.tar.xz -C "$out"
for program in programs/*.py; do
    name=$(basename "$program" .py)
    [[ $# -eq 0 || " $* " == *" $name "* ]] || continue
    rm -rf "${out:?}/$name"
    export MEZZO_AUDIT_FOLDER=$out/$name
    mkdir "$MEZZO_AUDIT_FOLDER"
    words=("$python")
    if grep -q init_process_group "$program"; then
        words+=(-m torch.distributed.run --nproc-per-node 2 --master-port 29517)
    fi
    # One program ends with torch's own error, which is part of its defect.
    "${words[@]}" "$program" >"$out/log" 2>&1 || [[ $name == never_updated_wrong ]] || { cat "$out/log"; exit 1; }
    for trace in "$MEZZO_AUDIT_FOLDER"/*.json; do # names without process numbers
        mv "$trace" "${trace%-*}.json"
    done
done
rm "$out/log"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$out" -cJf traces.tar.xz .
ls -l traces.tar.xz
