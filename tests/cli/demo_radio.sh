# scripts/demo-radio.sh, cut down to a few steps: cities, a run, a sheet, a table; again with the same cities; and with a run that fails.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
"$MEZZO" data radio --maps 1 --size 16 --extent 64 --out probe 2>&1 | grep -q "no libpng" && exit 77

demo() {
    last="demo-radio.sh, $*"
    env MEZZO="$MEZZO" MAPS=10 SIZE=16 STEPS=3 CITIES="$PWD/cities" "$@" "$MEZZO_SOURCE/scripts/demo-radio.sh" >"$OUT" 2>"$ERR" </dev/null
}
demo OUT="$PWD/run" || fail "exit code $?"
shows "$OUT" "10 cities with 2 transmitters" "NMSE" "run/predicted/sheet.png"
for word in mean free-space radio_unet; do
    grep -qE "^$word +[0-9]+\.[0-9]{3} +-?[0-9]\.[0-9]{3} +[0-9.]+ dB$" "$OUT" || fail "no scores of $word"
done
[[ -s run/predicted/sheet.png && $(ls run/predicted | wc -l) -eq 3 ]] || fail "two pictures and a sheet"
touch -r cities/radio.json before
demo OUT="$PWD/second" STEPS=2 || fail "exit code $?"
[[ ! cities/radio.json -nt before ]] || fail "the cities were made again"
# What fails ends it, with no table.
: >file
demo OUT="$PWD/file/x" && fail "a run that could not be written"
grep -q NMSE "$OUT" && fail "a table of nothing"
exit 0
