# Run folders of the first edition, whose checkpoints are of version 1, go on where they stopped: with its configuration, its losses and its
# text. tests/resume/data/first_edition was written by commit 9de34fd (6 steps, cut back to the checkpoint of step 3; losses: of steps 4 to 6).
source "$MEZZO_TESTS/cli/check.bash" || exit 1
rm -rf ./*
cp -r "$MEZZO_TESTS"/resume/data/first_edition/* .

# A loss of about 3 in a 16-bit format, on a processor whose kernels add in another order: 1e-3 is less than one of its steps.
goes_on() { # RUN
    run 0 train --config "$1/config.yaml" --resume auto --quiet --device cpu
    sed -nE 's/^\{"step": ([0-9]+), "train\/loss": *([-+0-9.eE]+).*/\1 \2/p' "$1/metrics.jsonl" | tail -n 3 >losses
    paste losses "$1/losses" | awk 'NF != 4 || $1 != $3 || ($2 - $4) ^ 2 > 1e-6 { print; bad = 1 } END { exit bad || NR != 3 }' >"$OUT" ||
        fail "$1: the losses differ"
}

for model in gpt2 glm4_moe; do
    cp -r "$model" kept
    goes_on "$model"
    run 0 eval "$model" --device cpu
    run 0 sample "$model" --device cpu --tokens 8
    rm -rf "$model" && mv kept "$model"
done

# A key that was not there when state.json was written has its default: these are the family's. (The manifest vouches for what was written.)
rm {gpt2,glm4_moe}/checkpoints/manifest.json
sed -i '/"bias"/d; s/"dropout": 0.0,/"dropout": 0.0/' gpt2/checkpoints/step-00000003/state.json
goes_on gpt2
sed -i '/"routed_scale"/d' glm4_moe/checkpoints/step-00000003/state.json
goes_on glm4_moe
