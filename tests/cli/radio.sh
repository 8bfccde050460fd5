# mezzo data radio: a folder in RadioMapSeer's layout, the same whatever the threads, and what it refuses.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
"$MEZZO" data radio --maps 1 --size 32 --extent 64 --out probe 2>&1 | grep -q "no libpng" && exit 77

small=(--size 32 --extent 128 --seed 5)
run 0 data radio --maps 3 --transmitters 2 "${small[@]}" --out one --threads 1
shows "$OUT" "one: 3 cities with 2 transmitters"
run 0 data radio --maps 3 --transmitters 2 "${small[@]}" --out two --threads 2 --json
shows "$OUT" '"pictures": 15' '"folder": "two"'
diff -r one two || fail "two threads make other maps than one"
for file in png/buildings_complete/2.png png/antennas/2_1.png gain/DPM/2_1.png radio.json; do
    [[ -s one/$file ]] || fail "$file is missing"
done
run 0 data radio --maps 1 --transmitters 1 "${small[@]:0:4}" --seed 6 --out three
cmp -s one/gain/DPM/0_0.png three/gain/DPM/0_0.png && fail "another seed gives the same map"

refuse 2 --maps -- data radio --out x
refuse 2 --out -- data radio --maps 1
refuse 2 "one is not empty" -- data radio --maps 1 --out one
refuse 2 --split -- data radio --maps 1 --out x --split 0.5
refuse 2 --maps "data radio" -- data text.txt --maps 1 --out x
refuse 2 --size 8 -- data radio --maps 1 --size 8 --out x
refuse 2 "64 to 4096 m" -- data radio --maps 1 --size 32 --out x
[[ ! -e x ]] || fail "something was written"
