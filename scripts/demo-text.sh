#!/usr/bin/env bash
# Writes build/demo/text.txt, the demo's text, from the distribution's package bible-kjv; see docs/demo-text.md.
# One verse a line without its reference ("Ge1:1 "), an empty line before each chapter. Plain ASCII, about 4 MB.
set -euo pipefail
cd "$(dirname "$0")/.."

text=build/demo/text.txt
if [[ -s $text ]]; then
    exit 0
fi
mkdir -p build/demo
bible -f gen1:1-rev22:21 | awk '
    {
        chapter = $1
        sub(/:.*/, "", chapter)
        sub(/^[^ ]+ /, "")
        if (NR > 1 && chapter != last)
            print ""
        last = chapter
        print
    }' >"$text.part"
bytes=$(wc -c <"$text.part")
if ((bytes < 1000000)); then
    echo "The text from the command bible has only $bytes bytes; expected about 4 million." >&2
    exit 3
fi
mv "$text.part" "$text"
