#!/usr/bin/env bash
# scripts/demo-radio.sh: from nothing to radio maps that a small model predicts, and how near they are. `make demo-radio` calls it.
# MAPS, STEPS and SIZE make it smaller or larger; MEZZO is the command, where it is not to be built; CITIES and OUT are the folders.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

maps=${MAPS:-1000} steps=${STEPS:-800} size=${SIZE:-64}
cities=${CITIES:-build/demo/cities-$maps-$size}
mezzo=${MEZZO:-}
if [[ -z $mezzo ]]; then
    scripts/setup.sh build
    make --no-print-directory build
    mezzo=build/release/mezzo
fi
if [[ -z ${OUT:-} ]]; then
    n=1
    while [[ -e runs/radio-$n ]]; do
        n=$((n + 1))
    done
    OUT=runs/radio-$n
fi
# radio.json is written last: a folder of the demo's own without it was left by a run that was stopped.
if [[ ! -e $cities/radio.json ]]; then
    [[ -n ${CITIES:-} ]] || rm -rf "$cities"
    "$mezzo" data radio --maps "$maps" --transmitters 2 --size "$size" --extent 128 --seed 1 --out "$cities"
fi
"$mezzo" train --model radio_unet --model.objective image --d-model 16 --data "$cities" --split 0.9 --batch-size 8 --steps "$steps" --lr 2e-3 \
    --ema 0.99 --eval-every 200 --eval-iters 8 --precision auto --out "$OUT"

numbers() { # NAME, from the JSON on stdin
    awk -v name="$1" -F'[:,] *' '{ for (i = 1; i < NF; i++) if ($i ~ /"(nmse|ssim|psnr)"/) { gsub(/[ "{]/, "", $i); at[$i] = $(i + 1) } }
        END { printf "%-12s %8.3f %8.3f %8.1f dB\n", name, at["nmse"], at["ssim"], at["psnr"] }'
}
scores=$(
    printf '%-12s %8s %8s %8s\n' "" NMSE SSIM PSNR
    for word in mean free-space; do
        "$mezzo" eval $word --truth "$cities" --split 0.9 --json | numbers $word
    done
    "$mezzo" sample "$OUT" --out "$OUT/predicted" --rows 8 --json | numbers radio_unet
)
cat <<END

cities that it was not trained on:
$scores

$OUT/predicted/sheet.png   buildings and transmitter, the true map, the predicted one, and where they differ
END
