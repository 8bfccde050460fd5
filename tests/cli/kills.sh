# Commands that write are killed at random moments (MEZZO_KILLS=200: so many of each).
# Seen to fail with: train.bin written before the other files of its folder.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
command -v python3 >/dev/null || {
    echo "python3 is needed"
    exit 77
}
last="tests/fault/kills.py"
python3 "$MEZZO_TESTS/fault/kills.py" "$MEZZO" "${MEZZO_KILLS:-2}" >"$OUT" 2>"$ERR" || fail "a killed command lost something"
