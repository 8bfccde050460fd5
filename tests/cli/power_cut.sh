# The power fails during a small run: of every state that the disk may be in, some (all: tests/fault/power_cuts.py MEZZO 0).
source "$MEZZO_TESTS/cli/check.bash" || exit 1
strace -e trace=write true 2>/dev/null && command -v python3 >/dev/null || {
    echo "strace and python3 are needed, and strace must be allowed here"
    exit 77
}
last="tests/fault/power_cuts.py"
python3 "$MEZZO_TESTS/fault/power_cuts.py" "$MEZZO" "${MEZZO_POWER_CUTS:-24}" >"$OUT" 2>"$ERR" || fail "a state lost something"
