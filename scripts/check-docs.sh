#!/usr/bin/env bash
# Every op of ops.def has its row in docs/OPS.md, every precision of precisions.def its row in docs/train.md (the unit test
# test_precisions compares the cells), every local link of the documents leads somewhere, and the guide to precisions shows what was measured.
set -euo pipefail
cd "$(dirname "$0")/.."

broken=0
if [[ -f docs/OPS.md && -f src/graph/ops.def ]]; then
    # An op's row is a table row whose first cell is its name, with or without backticks.
    for op in $(sed -nE 's/^OP\(([a-zA-Z0-9_]+).*/\1/p' src/graph/ops.def | tr '[:upper:]' '[:lower:]'); do
        if ! grep -qiE "^\| *\`?$op\`? *\|" docs/OPS.md; then
            echo "docs/OPS.md: no row for the op $op of src/graph/ops.def"
            broken=1
        fi
    done
fi

for precision in $(sed -nE 's/^PRECISION\([A-Z0-9_]+, "([^"]+)".*/\1/p' src/base/precisions.def); do
    if ! grep -qF "| \`$precision\` | \`" docs/train.md; then
        echo "docs/train.md: no row for the precision $precision of src/base/precisions.def"
        broken=1
    fi
done

while IFS=: read -r file link; do
    target=${link%%#*}
    if [[ -n $target && ! -e $(dirname "$file")/$target ]]; then
        echo "$file: the link $link leads nowhere"
        broken=1
    fi
done < <(find README.md docs bench -name '*.md' -print0 2>/dev/null |
    xargs -0 -r grep -HoE '\]\([^):]+\)' | sed -E 's/\]\(([^)]*)\)/\1/')

bench/which_precision.py --check || broken=1

exit $broken
