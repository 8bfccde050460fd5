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
shows "$OUT" "three: 1 city with 1 transmitter each"
cmp -s one/gain/DPM/0_0.png three/gain/DPM/0_0.png && fail "another seed gives the same map"

refuse 2 --maps -- data radio --out x
refuse 2 --out -- data radio --maps 1
refuse 2 "one is not empty" -- data radio --maps 1 --out one
refuse 2 --split -- data radio --maps 1 --out x --split 0.5
refuse 2 --maps "data radio" -- data text.txt --maps 1 --out x
refuse 2 --size 8 -- data radio --maps 1 --size 8 --out x
refuse 2 "a city of 32 m" "64 to 4096 m" "one metre a pixel" -- data radio --maps 1 --size 32 --out x
[[ ! -e x ]] || fail "something was written"

# --- scores: of a prediction that is the truth, of what is to be beaten, of what cannot be compared
run 0 data radio --maps 12 --transmitters 2 "${small[@]}" --out cities
run 0 eval cities/gain/DPM --truth cities --json
shows "$OUT" '"pictures": 24' '"nmse": 0' '"ssim": 1'
run 0 eval mean --truth cities --split 0.5 --csv mean.csv --sheet mean.png --rows 2
shows "$OUT" "pictures    12" NMSE SSIM PSNR
[[ $(wc -l <mean.csv) -eq 13 && $(head -1 mean.csv) == name,nmse,rmse,psnr,ssim ]] || fail "mean.csv"
# 2 rows of 4 tiles: 32 pixels, five times as large, and 4 between
[[ $(od -An -tu1 -j16 -N8 mean.png | tr -s ' ') == " 0 0 2 148 0 0 1 76" ]] || fail "the sheet's size"
run 0 eval free-space --truth cities --split 0.5 --json
shows "$OUT" '"pictures": 12'
mkdir other
refuse 2 "no prediction" "0_0.png" -- eval other --truth cities
cp one/png/antennas/0_0.png other/11_1.png
run 0 eval other --truth cities
shows "$OUT" "pictures    1"
"$MEZZO" data radio --maps 1 --size 16 --extent 64 --out tiny >/dev/null
cp tiny/gain/DPM/0_0.png other/11_1.png
refuse 2 other/11_1.png "16 x 16" -- eval other --truth cities
refuse 2 nonsense free-space -- eval nonsense --truth cities
refuse 2 --truth -- eval mean --csv x
refuse 2 mean --truth -- eval mean
refuse 2 free-space --truth -- eval free-space
refuse 2 nowhere "no such folder" -- eval mean --truth nowhere
refuse 2 three "1" "leaves none to train on" -- eval mean --truth three
refuse 2 --best -- eval mean --truth cities --best
printf 'no picture' >cities/gain/DPM/3_1.png
refuse 2 cities/gain/DPM/3_1.png "not a PNG" -- eval mean --truth cities
