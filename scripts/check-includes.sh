#!/usr/bin/env bash
# Includes go downward only. The table below says which folder may include what.
# scripts/check-includes.sh prints every include that breaks it and fails if there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

# folder: what its files may include, as patterns on the path after src/ or include/. Its own folder is always allowed.
allowed() {
    local public_graph="mezzo/status.h mezzo/dtype.h mezzo/graph.h mezzo/program.h mezzo/device.h mezzo/optimizers.def"
    case $1 in
    include) echo "mezzo/*" ;;
    base) echo "mezzo/status.h mezzo/dtype.h mezzo/version.h" ;;
    graph) echo "base/* quant/entry.h $public_graph" ;;
    quant) echo "base/* graph/op.h backend/backend.h $public_graph" ;;
    # optimizer.h: the words of the update step (kinds of schedule), whose kernels are the backends'.
    backend) echo "base/* graph/* quant/entry.h $public_graph mezzo/optimizer.h" ;;
    backend/*) echo "base/* graph/* quant/entry.h backend/*.h $public_graph mezzo/optimizer.h" ;;
    runtime) echo "base/* graph/* quant/* backend/*.h $public_graph mezzo/optimizer.h" ;;
    nn) echo "base/* nn/* $public_graph" ;;
    models) echo "base/* io/file.h nn/* models/* $public_graph mezzo/model.h mezzo/model_keys.def mezzo/onnx.h onnx/place.h" ;;
    io) echo "base/* mezzo/status.h mezzo/dtype.h mezzo/program.h mezzo/io.h" ;;
    onnx) echo "base/* io/* $public_graph mezzo/onnx.h mezzo/step.h onnx.pb-c.h" ;;
    data) echo "base/* io/* mezzo/status.h mezzo/dtype.h mezzo/data.h" ;;
    optim) echo "base/* graph/* backend/*.h runtime/* $public_graph mezzo/optimizer.h mezzo/step.h" ;;
    session) echo "base/* graph/* models/*.h backend/*.h runtime/* optim/* mezzo/*" ;;
    checkpoint) echo "models/*.h base/* graph/* backend/*.h runtime/* io/* optim/* mezzo/*" ;;
    # a task stands between the loop and the data: nothing above it includes data/*
    task) echo "nn/diffusion.h models/*.h session/* base/* graph/* backend/*.h runtime/* io/* data/* mezzo/*" ;;
    train) echo "base/* graph/* models/*.h session/* backend/*.h dist/*.h runtime/* io/* task/* optim/* checkpoint/* mezzo/*" ;;
    weights) echo "models/*.h session/* base/* graph/* backend/*.h runtime/* io/* data/* task/* optim/* checkpoint/* train/* mezzo/*" ;;
    study/audit) echo "base/* io/* backend/*.h study/agree/* study/measure/kernels.h mezzo/*" ;;
    study/analyse | study/agree) echo "base/* io/* mezzo/*" ;;
    study/measure) echo "models/*.h session/* base/* graph/* backend/*.h runtime/* io/* task/* optim/* train/* study/analyse/* study/page/* mezzo/*" ;;
    study/lab) echo "session/* base/* graph/* backend/*.h runtime/* io/* task/* optim/* train/* study/analyse/* study/measure/* mezzo/*" ;;
    study/page) echo "base/* graph/* backend/*.h runtime/* optim/* models/*.h session/* io/* task/* train/* study/agree/* study/audit/* mezzo/*" ;;
    dist) echo "base/* backend/*.h mezzo/*" ;;
    cli) echo "* mezzo/*" ;;
    tools) echo "* mezzo/*" ;;
    examples) echo "mezzo/*" ;;
    bench) echo "* mezzo/*" ;;
    *) echo "" ;;
    esac
}

# Headers of a vendor's library stay inside the one folder that wraps it.
vendor_home() {
    case $1 in
    cuda* | cublas* | cudnn* | curand* | nvml* | nvtx*) echo "src/backend/cuda" ;;
    nccl*) echo "src/backend/cuda" ;;
    mpi.h | pmix*) echo "src/dist/mpi" ;;
    png.h | zlib.h) echo "src/io" ;;
    pcre2* | utf8proc.h) echo "src/data" ;;
    oneapi/dnnl/* | dnnl* | cblas* | openblas* | blis*) echo "src/backend/cpu" ;;
    *) echo "" ;;
    esac
}

folder_of() { # src/graph/x.c -> graph; src/backend/cpu/kernels/x.c -> backend/cpu; src/study/lab/x.c -> study/lab
    local path=${1#src/}
    case $path in
    backend/*/*) path=${path#backend/} && echo "backend/${path%%/*}" ;;
    study/*/*) path=${path#study/} && echo "study/${path%%/*}" ;;
    *) echo "${path%%/*}" ;;
    esac
}

matches() { # path pattern...; '*' stands for anything but "/" at the end of a "x/*.h", anything in "x/*"
    local path=$1 pattern
    shift
    for pattern in "$@"; do
        # "backend/*.h" must not reach into a backend's own folder.
        if [[ $pattern == */\*.h && ${path#"${pattern%\*.h}"} == */* ]]; then
            continue
        fi
        # shellcheck disable=SC2053
        [[ $path == $pattern ]] && return 0
    done
    return 1
}

set -f # patterns are for the comparison above, not for file names
broken=0
complain() {
    echo "$1:$2: $3"
    broken=1
}

check_quoted() { # file line header
    local file=$1 line=$2 header=$3 folder path patterns
    folder=$(folder_of "$file")
    if [[ $header != mezzo/* && $header != */* && -e ${file%/*}/$header ]]; then
        path=${file%/*}/$header # a neighbour
        path=${path#src/}
    else
        path=$header
    fi
    read -ra patterns <<<"$folder/* $(allowed "$folder")"
    if [[ $header == *..* ]] || ! matches "$path" "${patterns[@]}"; then
        complain "$file" "$line" "$folder must not include \"$header\""
    fi
}

check_system() { # file line header
    local file=$1 line=$2 header=$3 home
    read -ra homes <<<"$(vendor_home "$header")"
    if [[ ${#homes[@]} -gt 0 ]]; then
        for home in "${homes[@]}"; do
            [[ $file == "$home"/* ]] && return
        done
        complain "$file" "$line" "<$header> belongs into ${homes[*]} only"
    fi
    if [[ $header == mezzo/* ]]; then
        complain "$file" "$line" "write #include \"$header\""
    fi
}

while IFS=: read -r file line text; do
    header=${text#*[<\"]}
    header=${header%%[>\"]*}
    if [[ $text == *\"* ]]; then
        check_quoted "$file" "$line" "$header"
    else
        check_system "$file" "$line" "$header"
    fi
done < <(find include src cli tools examples bench \( -name '*.[ch]' -o -name '*.def' -o -name '*.cu' \) -print0 2>/dev/null |
    xargs -0 -r grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]')

exit $broken
