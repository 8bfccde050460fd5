# A disk that fills up: the run says so and leaves with 3; what was whole before still is.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
text 200 >text.txt
run 0 train "${TINY[@]}" --steps 2 --data text.txt --out run
before=$(cd run/checkpoints && ls -d step-*)

# A file-size limit is a full disk that needs no rights: writes beyond it fail once SIGXFSZ is ignored.
last="mezzo train --resume auto, with files limited to 8 kB"
(
    trap '' XFSZ
    ulimit -f 8
    exec "$MEZZO" train "${TINY[@]}" --steps 6 --checkpoint-every 1 --data text.txt --out run --resume auto
) >"$OUT" 2>"$ERR" </dev/null
code=$?
[[ $code -eq 3 ]] || fail "exit code $code, not 3"
shows "$ERR" "mezzo train: " "run/"
for checkpoint in $before; do
    [[ -d run/checkpoints/$checkpoint ]] || fail "the checkpoint $checkpoint is gone"
done
run 0 eval run --iters 1
run 0 train "${TINY[@]}" --steps 4 --data text.txt --out run --resume auto

# A real full file system, where the rights allow one.
mkdir small
if mount -t tmpfs -o size=256k tmpfs small 2>/dev/null; then
    trap 'umount "$SCRATCH/work/small"; rm -rf "$SCRATCH"' EXIT
    head -c 200k /dev/zero >small/ballast
    refuse 3 "small/run" -- train "${TINY[@]}" --steps 3 --data text.txt --out small/run
    rm -rf small/run small/ballast
    mount -o remount,ro small
    refuse 3 "small/run" -- train "${TINY[@]}" --steps 3 --data text.txt --out small/run
fi
