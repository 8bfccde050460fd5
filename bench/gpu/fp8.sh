#!/usr/bin/env bash
# fp8 [PART…]: 60 experts of width 200 beside 208 (experts), memory of fp8 beside bf16 (memory: steps.csv); where a step of width 1000 is slower than one
# of 1024, 12 layers in bf16 (profile: ops-WIDTH.csv, 30 s); shapes that no tile fits beside aligned ones by bench/fp8_grid.py (grid: fp8-grid.csv). Without words all of them.
# plans: the planned memory of two vocabularies (memory-*, plan-*). Of the grid alone: the widths 1000 and 1016 (widths, 60 s), odd numbers of tokens (tokens), GPT-2's vocabularies (vocabularies),
# 12 and 48 layers of width 1000, two turns (deep, 90 s), 50258 alone, three turns (vocabulary, 20 s).
. "$(dirname "$0")/common.sh"
parts=("$@")
asked() { [[ ${#parts[@]} -eq 0 || " ${parts[*]} " == *" $1 "* ]]; }
DATA=$(tokens)
for p in bf16 fp8; do for w in 200 208; do
    # shellcheck disable=SC2046
    ! asked experts || ! time_for 30 "experts of $w" || ROW_LIMIT=20 steps "experts-$w-$p" --model glm4_moe $(pick \
        "--layers 4 --heads 8 --d-model 800 --d-ff 2400 --experts 60 --experts-per-token 4 --seq-len 512 --batch-size 16" \
        "--layers 2 --heads 2 --d-model 32 --d-ff 64 --experts 4 --experts-per-token 2 --seq-len 32 --batch-size 2") --d-expert $w --vocab 50304 \
        --steps 14 --precision $p
done; done
for p in bf16 fp8; do
    # shellcheck disable=SC2046
    ! asked memory || ! time_for 25 "1558M in $p" || ROW_LIMIT=40 steps "1558M-$p" $(pick "--model gpt2-1558M --seq-len 1024 --batch-size 8" \
        "--layers 2 --heads 2 --d-model 32 --seq-len 32 --batch-size 2") \
        --vocab 50304 --recompute-light --steps 8 --precision $p
done
for w in $(pick "1000 1024" "40 48"); do
    # shellcheck disable=SC2046
    ! asked profile || ! time_for 15 "profile of $w" || { ROW_LIMIT=25 steps "w$w" --model gpt2 --layers 12 --heads 8 --d-model "$w" \
        --vocab $((w % 16 ? 50257 : 50304)) $(pick "--seq-len 1024 --batch-size 8" "--seq-len 32 --batch-size 2") \
        --dropout 0 --steps 12 --precision bf16 --profile 4 && cp "w$w/profile/ops.csv" "$out/ops-$w.csv" && python3 "$root/bench/gpu/ops.py" "$out/ops-$w.csv"; }
done
for v in $(pick "50257 50304" "500 512"); do for p in bf16 fp8; do
    # shellcheck disable=SC2046
    set -- $(pick "--model gpt2 --layers 2 --heads 12 --d-model 768 --seq-len 512 --batch-size 8" "--model gpt2 --layers 2 --heads 2 --d-model 32 --seq-len 32 --batch-size 2") \
        --vocab "$v" --precision $p --device "$device"
    ! asked plans || { "$mezzo" memory "$@" >"$out/memory-$v-$p.txt" 2>&1; "$mezzo" explain --after plan "$@" >"$out/plan-$v-$p.txt" 2>&1; }
done; done
grid() { # OPTION…
    # shellcheck disable=SC2046
    capped 600 python3 "$root/bench/fp8_grid.py" "$mezzo" --device "$device" --csv "$out/fp8-grid.csv" --commit "$commit" --seconds $(($(left) - 3)) \
        "$@" $(pick "" "--only tiny --turns 1")
}
[[ " ${parts[*]} " != *" widths "* ]] || grid --only "width 10" --turns 2
[[ " ${parts[*]} " != *" tokens "* ]] || grid --only tokens --turns 2
[[ " ${parts[*]} " != *" vocabularies "* ]] || grid --only "vocabulary 502" --turns 1
[[ " ${parts[*]} " != *" deep "* ]] || grid --only layers --turns 2
[[ " ${parts[*]} " != *" vocabulary "* ]] || grid --only "vocabulary 50258" --turns 3
! asked grid || grid --turns 1
exit 0
