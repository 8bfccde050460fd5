#!/usr/bin/env bash
# The list of ONNX ops in docs/onnx.md, from src/onnx/ops.def: prints it; --write puts it into the page; --check compares.
set -euo pipefail
cd "$(dirname "$0")/.."
list() {
    { sed -nE 's/^(UNARY|MADE|BINARY|COMPARE)\(([A-Za-z]+),.*/\2/p; s/^OP\(([A-Za-z0-9]+), .*, ""\)$/\1/p' src/onnx/ops.def |
        paste -sd, | sed 's/,/, /g; s/^/In all forms: /; s/$/./'; } | fold -s -w 138 | sed 's/ *$//'
    echo
    echo "| in part | what works |"
    echo "|---|---|"
    sed -nE 's/^OP\(([A-Za-z0-9]+), .*"(.+)"\)$/| \1 | \2 |/p' src/onnx/ops.def
}
page() { # with the list between its marks
    sed -n '1,/^<!-- ops/p' docs/onnx.md
    list
    sed -n '/^<!-- end of ops/,$p' docs/onnx.md
}
case ${1:-} in
--write)
    text=$(page)
    printf '%s\n' "$text" >docs/onnx.md
    ;;
--check) page | diff docs/onnx.md - >/dev/null || { echo "docs/onnx.md: the list of ops is not src/onnx/ops.def's: scripts/onnx-ops.sh --write"; exit 1; } ;;
*) list ;;
esac
