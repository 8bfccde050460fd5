#!/usr/bin/env bash
# The architectures to compile for on this machine, as MEZZO_CUDA_ARCH takes them: its GPUs' own, e.g. "90a" or "75;86".
# Prints nothing where there is no GPU.
command -v nvidia-smi >/dev/null || exit 0
nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | sort -u |
    sed 's/^90$/90a/' | paste -sd ';' -
