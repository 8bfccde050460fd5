#!/usr/bin/env bash
# onnx [MODELS]: steps of models from ONNX files beside PyTorch compiled, in turns, by bench/onnx_torch.py (onnx-torch.csv), and where their time
# goes (NAME-ops.csv).
. "$(dirname "$0")/common.sh"
capped 600 python3 "$root/bench/onnx_torch.py" "$mezzo" --models "${1:-$(pick gpt2,resnet18,llama,vit gpt2)}" --steps "$(pick 60 10)" --rounds 2 \
    --seconds $(($(left) - 8)) --csv "$out/onnx-torch.csv" --card "$card" \
    --commit "$commit" --device "$device" $(pick "" "--layers 1 --batch 2")
cp ./*.torch.log "$out/"
cp ./*-ops.csv "$out/"
