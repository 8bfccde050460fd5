#!/usr/bin/env bash
# scripts/format.sh [--check]: clang-format on every source of ours; --check changes nothing and fails on a difference.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(-i)
if [[ ${1:-} == --check ]]; then
    mode=(--dry-run -Werror)
fi
folders=()
for folder in include src cli tools examples tests bench; do
    if [[ -d $folder ]]; then
        folders+=("$folder")
    fi
done
find "${folders[@]}" \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 -r clang-format "${mode[@]}"
