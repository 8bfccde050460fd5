#!/usr/bin/env bash
# Builds twice, in folders of other names and depths, with another time zone, umask and number of jobs, and without ccache, and compares
# the bytes. What is compared: scripts/reproducible.sh [PART ...]
#   sample   every 60th object and a plug-in [the default]
#   tree     all that `cmake --install` installs: the command, both libraries, headers, man pages, examples
#   wheel    the wheel, before and after auditwheel (its tools are those of scripts/wheel.sh)
#   deb      the Debian packages (scripts/setup.sh deb)
#   cuda     the object of one CUDA file
# tree, wheel and deb are compiled without optimization: it changes no path, date or order.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=" ${*:-sample} "
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH CCACHE_DISABLE=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tools=$PWD/build/wheel-tools/bin
sources=("$scratch/one/mezzo" "$scratch/of-another-depth/and/name/mezzo") builds=("$scratch/one/mezzo/build/release" "$scratch/objects")
zones=(UTC Asia/Tokyo) masks=(022 077) jobs=("$(nproc)" 1)
wrong=0

for source in "${sources[@]}"; do
    mkdir -p "$source"
    git ls-files -z | tar -c --null -T - | tar -x -C "$source"
done

each() { # FUNCTION: in both folders, under other circumstances
    local i
    for i in 0 1; do
        (umask "${masks[i]}" && export TZ=${zones[i]} && "$1" "${sources[i]}" "${builds[i]}" "${jobs[i]}" "$i" >"$scratch/log" 2>&1) ||
            { tail -n 20 "$scratch/log"; exit 1; }
    done
}
same() { # WHAT A B: two files, or two folders with their files' modes
    local files
    files=$(find "$2" -type f | wc -l)
    if [[ $files -gt 0 ]] && diff -rq --no-dereference "$2" "$3" && diff <(cd "$2" && find . -printf '%p %m\n' | sort) <(cd "$3" && find . -printf '%p %m\n' | sort); then
        echo "$1: the same bytes twice, $files files"
    else
        echo "$1: differs"
        wrong=1
    fi
}

configure() { # SOURCE BUILD OPTION ...
    cmake -S "$1" -B "$2" -G Ninja -DMEZZO_TESTS=OFF -DMEZZO_CUDA=OFF -DMEZZO_WERROR=OFF "${@:3}"
}
build_sample() {
    local targets
    configure "$1" "$2" -DCMAKE_BUILD_TYPE=Release
    mapfile -t targets < <(ninja -C "$2" -t targets all | sed -nE 's/^(.*\.c\.o|mezzo_mpi\.so): .*/\1/p' | sort | awk 'NR % 60 == 1 || /pb-c|mpi/')
    ninja -C "$2" -j "$3" "${targets[@]}" libmezzo_radio.a
    mkdir "$scratch/sample$4"
    (cd "$2" && find . \( -name '*.o' -o -name '*.a' -o -name 'mezzo_*.so' \) -print0 | xargs -0 cp --parents -t "$scratch/sample$4")
    chmod -R u=rwX,go=rX "$scratch/sample$4"
}
build_tree() {
    configure "$1" "$2" -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS="-O0 -g"
    ninja -C "$2" -j "$3"
    (umask 022 && DESTDIR=$scratch/tree$4 cmake --install "$2" --prefix /usr)
}
build_wheel() {
    umask 022 # a wheel keeps the modes of folders
    (cd "$1" && PATH=$tools:$PATH python3 -m build --wheel --outdir "$scratch/wheel$4" -Cbuild-dir="$2-wheel" -Ccmake.define.MEZZO_CUDA=OFF \
        -Ccmake.build-type=None -Ccmake.define.CMAKE_C_FLAGS="-O0 -g" .)
    PATH=$tools:$PATH auditwheel repair --plat "manylinux_2_35_$(uname -m)" --wheel-dir "$scratch/repaired$4" "$scratch/wheel$4"/*.whl
}
build_deb() {
    mkdir "$1/../package"
    mkdir -m 755 "$scratch/deb$4"
    cp -r "$1" "$1/../package/"
    (cd "$1/../package/mezzo" && DEB_BUILD_OPTIONS="noopt nocheck parallel=$3" dpkg-buildpackage --build=binary --unsigned-changes --no-check-builddeps)
    install -m 644 -t "$scratch/deb$4" "$1"/../package/*.deb
}
build_cuda() {
    cmake -S "$1" -B "$2-cuda" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMEZZO_TESTS=OFF -DMEZZO_CUDA=ON -DMEZZO_CUDA_ARCH=90a
    ninja -C "$2-cuda" CMakeFiles/mezzo_cuda_kernels.dir/src/backend/cuda/kernels/columns.cu.o
    mkdir -m 755 "$scratch/cuda$4"
    install -m 644 -t "$scratch/cuda$4" "$2-cuda"/CMakeFiles/mezzo_cuda_kernels.dir/src/backend/cuda/kernels/columns.cu.o
}

for part in $parts; do
    [[ $part == sample || $part == tree || $part == wheel || $part == deb || $part == cuda ]] || { echo "no part $part"; exit 2; }
    each "build_$part"
    same "$part" "$scratch/${part}0" "$scratch/${part}1"
    [[ $part != wheel ]] || same "repaired wheel" "$scratch/repaired0" "$scratch/repaired1"
    rm -rf "$scratch/${part}"[01] "${builds[@]}"
done
exit "$wrong"
