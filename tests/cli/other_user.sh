# What belongs to somebody else: readers read it where they may, say so where they may not, and nothing in it changes.
# Seen to fail with an unreadable folder taken for one without records: watch and report told of no records.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 100 >text.txt
run 0 train "${TINY[@]}" --steps 4 --data text.txt --out theirs
cp -r theirs closed
chmod -R a+rX "$SCRATCH" theirs text.txt
chmod 000 closed
if [[ $(id -u) -eq 0 ]]; then # root reads everything
    command -v setpriv >/dev/null || exit 77
    cp "$MEZZO" "$SCRATCH/mezzo" && chmod 755 "$SCRATCH/mezzo"
    mkdir ours && chown 65534:65534 ours
    cat >"$SCRATCH/other" <<END
#!/bin/sh
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$SCRATCH/mezzo" "\$@"
END
    chmod 755 "$SCRATCH/other"
    MEZZO=$SCRATCH/other
    run 0 eval theirs --iters 1
    run 0 sample theirs --prompt a --tokens 3
    run 0 watch theirs --once
    run 0 report theirs --out ours/page.html
    run 0 export theirs --out ours/exported
    refuse 3 "theirs/report.html" "Permission denied" -- report theirs
    refuse 3 "theirs/.lock" "Permission denied" -- train --config theirs/config.yaml --resume auto --steps 8
    run 0 train --config theirs/config.yaml --resume theirs --steps 8 --out ours/run
    [[ -z $(find theirs -newer closed -type f) ]] || fail "somebody else's folder was changed"
else
    mkdir ours
fi
refuse 3 closed "Permission denied" -- watch closed --once
refuse 3 closed "Permission denied" -- report closed --out ours/closed.html
refuse 3 closed "Permission denied" -- eval closed
refuse 3 closed "Permission denied" -- sample closed
refuse 3 closed "Permission denied" -- train "${TINY[@]}" --data text.txt --init closed --out ours/new
chmod 755 closed
