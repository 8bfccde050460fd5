# --resume says where the data is not what the checkpoint was trained and validated on, whatever kind of data, and goes on;
# it says nothing where the data is the same, or where the checkpoint does not know.
# Seen to fail with: a mark of the bytes' number alone; of training data alone; pieces of large shards left out.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
FEW=(--precision fp32 --log-every 1 --sample-every -1 --threads 1)
says() { # WORD…: one warning, with these; nothing: none
    local words=("$@")
    if ((${#words[@]} == 0)); then
        ! grep -q "is not what it was" "$ERR" || fail "a warning about data that is the same"
    else
        [[ $(grep -c "is not what it was" "$ERR") -eq 1 ]] || fail "not one warning about the data"
        shows "$ERR" "${words[@]}"
    fi
}
go_on() { # RUN STEPS OPTION…
    run 0 train --config "$1/config.yaml" --resume auto --steps "$2" "${@:3}"
}
swap() { # FILE FROM TO: the byte at FROM becomes TO
    printf "%b" "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# A text: the same, then as long with another letter, at the front and at the end.
text 100 >text.txt
run 0 train "${TINY[@]}" "${FEW[@]}" --tokenizer byte --data text.txt --steps 2 --out t
shows t/checkpoints/step-00000002/state.json '"data"' '"validation"' '"crc32c"'
go_on t 3
says
swap text.txt 40 X
go_on t 4
says "'text.txt'" "training" "step-00000003" "continues"
go_on t 5
says
run 0 eval t
says
swap text.txt $(($(wc -c <text.txt) - 9)) X
run 0 eval t
says "'text.txt'" "validation" "losses do not compare with the run's"
run 0 eval t --data text.txt
says
go_on t 6
says "'text.txt'" "validation" "do not compare"
go_on t 7 --split 0.9 --data text.txt
says
run 0 train --config t/config.yaml --resume auto --steps 8 --split 0.8
[[ $(grep -c "is not what it was" "$ERR") -eq 2 ]] || fail "another split changes both"

# Its tokens as shards are the same data; other ones are not. A file of its own validates.
run 0 data text.txt --tokenizer byte --out shards
run 0 train --config t/config.yaml --resume t/checkpoints/step-00000007 --steps 8 --data shards --out u
says
swap shards/train.bin 1100 X
run 0 train --config t/config.yaml --resume t/checkpoints/step-00000007 --steps 8 --data shards --out v
says "'shards'" "training"
text 20 >val.txt
run 0 train "${TINY[@]}" "${FEW[@]}" --tokenizer byte --train-data text.txt --val-data val.txt --steps 1 --out w
swap val.txt 3 X
go_on w 2
says "'val.txt'" "validation"

# Large shards are looked at in pieces: the first, the last, and what lies between.
mkdir large
truncate -s 280M large/train.bin
head -c 4000 /dev/zero >large/val.bin
run 0 train "${TINY[@]}" "${FEW[@]}" --vocab 256 --data large --steps 1 --out l
go_on l 2
says
for at in 0 $((280 * 1024 * 1024 - 2)) $(((280 * 1024 * 1024 - 65536) / 1023 * 511 + 7000)); do
    swap large/train.bin "$at" '\x01'
    run 0 train --config l/config.yaml --resume l/checkpoints/step-00000001 --steps 2 --out "l$at"
    says "'large'" "training"
    swap large/train.bin "$at" '\x00'
done

# Instructions: another answer of the same length.
for i in {1..20}; do echo "{\"prompt\": \"say $i\", \"completion\": \"number $i\"}"; done >told.jsonl
run 0 train "${TINY[@]}" "${FEW[@]}" --tokenizer byte --data told.jsonl --steps 1 --out i
go_on i 2
says
sed -i '2s/number/Number/' told.jsonl
go_on i 3
says "'told.jsonl'" "training"

# A classifier's features and labels; its own set says nothing.
npy() { # DESCR SHAPE: a header of 128 bytes
    printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "{'descr': '$1', 'fortran_order': False, 'shape': $2, }"
}
{ npy '|u1' '(40, 5)' && head -c 200 "$MEZZO"; } >x.npy
{ npy '|u1' '(40,)' && for ((k = 0; k < 40; k++)); do printf "\\x0$((k % 3))"; done; } >y.npy
SET=(--model toy "${FEW[@]}" --batch-size 4 --eval-iters 1 --device cpu)
run 0 train "${SET[@]}" --data x.npy --labels y.npy --steps 1 --out c
go_on c 2
says
for ((k = 0; k < 40; k++)); do swap y.npy $((128 + k)) "\\x0$(((k + 1) % 3))"; done
run 0 train --config c/config.yaml --resume auto --steps 3
[[ $(grep -c "'x.npy': the .* is not what it was" "$ERR") -eq 2 ]] || fail "other labels are other data"
run 0 train "${SET[@]}" --steps 1 --out own
! grep -q '"data"' own/checkpoints/step-00000001/state.json || fail "a mark of data that no file has"

# Pictures: two cities change places.
if "$MEZZO" data radio --maps 6 --transmitters 1 --size 16 --extent 64 --out maps >/dev/null 2>&1; then
    run 0 train --model radio_unet-tiny --data maps "${FEW[@]}" --batch-size 2 --eval-iters 1 --device cpu --steps 1 --out p
    go_on p 2
    says
    for i in {1..5}; do cp maps/gain/DPM/{0,"$i"}_0.png; done
    run 0 train --config p/config.yaml --resume auto --steps 3
    shows "$ERR" "'maps': the training data is not what it was"
fi

# A checkpoint that does not know, as older ones do not.
state=t/checkpoints/step-00000007/state.json
sed -i -e '/^  "data": {$/,/^  },$/d' -e '/^  "validation": {$/,/^  },$/d' -e 's/"version": 2/"version": 1/' -e '/^  "crc32c": "/d' "$state"
sed -i -e 'N;$s/},\n}/}\n}/;P;D' "$state"
! grep -q '"data"' "$state" || fail "the test's checkpoint is not an old one"
run 0 train --config t/config.yaml --resume t/checkpoints/step-00000007 --steps 8 --data val.txt --out n
says
