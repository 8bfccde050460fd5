#!/usr/bin/env bash
# Public headers say what a caller must know: each refers to the page that holds for every call, and no declaration stands in a
# paragraph without a comment. Examples stay short.
set -euo pipefail
cd "$MEZZO_SOURCE"

bad=0
for header in include/mezzo/*.h; do
    case $header in
    */mezzo.h | */status.h | */version.h) ;; # the page itself, and what it is made of
    *) grep -q '^//.*mezzo\.h' "$header" || { echo "$header does not refer to mezzo.h"; bad=1; } ;;
    esac
    awk -v RS= -v header="$header" '/MEZZO_API [a-z]/ && !/\/\// { print header ": no comment at: " $0; bad = 1 } END { exit bad }' \
        "$header" || bad=1
done
for example in examples/*.c; do
    (($(wc -l <"$example") < 120)) || { echo "$example: $(wc -l <"$example") lines"; bad=1; }
done
exit $bad
