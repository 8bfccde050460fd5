#!/usr/bin/env bash
# Installs the distribution packages that are missing: scripts/setup.sh SET...   with SET of build, demo, test, arm64, deb.
# What counts is whether a thing works, not which package it came from: with everything there, this does nothing and needs no network,
# on any distribution. Exit 3: something is missing and could not be installed.
set -uo pipefail

sets=" ${*:-build demo test} "
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# --- what is needed ---------------------------------------------------------------------------------------------------------
compiles() { # compiler flags... <program on stdin
    "$@" -x c - -o "$scratch/out" 2>/dev/null
}
has_cc() { printf '#include <omp.h>\n#include <math.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' | compiles "${CC:-cc}" -fopenmp; }
has_clang() { printf '#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' | compiles clang -fopenmp; }
has_fuzzer() {
    printf '#include <stddef.h>\n#include <stdint.h>\nint LLVMFuzzerTestOneInput(const uint8_t *d, size_t n);\nint LLVMFuzzerTestOneInput(const uint8_t *d, size_t n) { return n > 9 && d[0] > 9 ? -1 : 0; }\n' |
        compiles clang -fsanitize=fuzzer,address,undefined
}
has_cmake() { cmake --version 2>/dev/null | awk 'NR == 1 { split($3, v, "."); exit !(v[1] > 3 || (v[1] == 3 && v[2] >= 25)) } END { if (NR == 0) exit 1 }'; }
has_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }
has_bible() { printf 'gen1:1\n' | bible -f 2>/dev/null | grep beginning; }
has_charts() { # as CMakeLists.txt looks for it
    local file
    for file in /usr/share/{javascript/chart.js,nodejs/chart.js/dist}/{chart.min,Chart.min,chart.umd}.js; do
        [[ -e $file ]] && return 0
    done
    return 1
}
has_mpi() { command -v mpicc && command -v mpirun && pkg-config --exists pmix; }
has_browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
has_arm64() { # a program with all of our libraries, for ARM
    printf '#include <yaml.h>\n#include <jansson.h>\n#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\n#include <stdarg.h>\n#include <stddef.h>\n#include <setjmp.h>\n#include <stdint.h>\n#include <cmocka.h>\nint main(void) { return 0; }\n' |
        compiles aarch64-linux-gnu-gcc -fopenmp -Wl,--no-as-needed -lyaml -ljansson -lpcre2-8 -lcmocka && qemu-aarch64 "$scratch/out"
}
has_packaging() { command -v dpkg-buildpackage && command -v dh && command -v dh_python3 && command -v lintian; }
has_command() { command -v "$1" >/dev/null; }
has_protobuf() { has_module libprotobuf-c && has_command protoc-c; }
has_module() { pkg-config --exists "$1" 2>/dev/null; }

# The versioned package behind an unversioned one: clang -> 18.
clang_version() { apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -1; }

missing=() what=()
need() { # "what it is" "packages" check...
    local name=$1 packages=$2
    shift 2
    if ! "$@" >/dev/null 2>&1; then
        what+=("$name")
        read -ra words <<<"$packages"
        missing+=("${words[@]}")
    fi
}
find_missing() {
    missing=() what=()
    if [[ $sets == *" build "* || $sets == *" test "* ]]; then
        need "a C compiler with OpenMP (gcc)" "gcc libc6-dev" has_cc
        need "make" "make" has_command make
        need "CMake 3.25 or later" "cmake" has_cmake
        need "Ninja" "ninja-build" has_command ninja
        need "pkg-config" "pkg-config" has_command pkg-config
        need "libyaml with its headers (yaml-0.1)" "libyaml-dev" has_module yaml-0.1
        need "jansson with its headers" "libjansson-dev" has_module jansson
        need "PCRE2 with its headers" "libpcre2-dev" has_module libpcre2-8
        need "MPI with its headers, for ranks on CPUs" "libopenmpi-dev libpmix-dev openmpi-bin" has_mpi
        need "libpng with its headers" "libpng-dev" has_module libpng
        need "zlib with its headers" "zlib1g-dev" has_module zlib
        need "utf8proc with its headers" "libutf8proc-dev" has_module libutf8proc
        need "protobuf-c with its headers and compiler" "libprotobuf-c-dev protobuf-c-compiler" has_protobuf
        need "Chart.js, for the report's pages" "libjs-chart.js" has_charts
    fi
    if [[ $sets == *" demo "* ]]; then
        need "the demo's text (the King James Bible, command bible)" "bible-kjv" has_bible
    fi
    if [[ $sets == *" test "* ]]; then
        need "a browser for the report's test (chromium)" "chromium" has_browser
        need "gnuplot" "gnuplot-nox" has_command gnuplot
        need "cmocka with its headers" "libcmocka-dev" has_module cmocka
        need "clang with OpenMP" "clang libomp-dev" has_clang
        need "clang's sanitizer and fuzzer runtimes" "clang libclang-rt-$(clang_version)-dev" has_fuzzer
        need "clang-format" "clang-format" has_command clang-format
        [[ $(uname -m) != x86_64 ]] || need "qemu-user, for tests as other processors run them" "qemu-user" has_command qemu-x86_64
        need "Python 3 with venv" "python3 python3-venv" has_venv
    fi
    if [[ $sets == *" deb "* ]]; then
        need "what builds and checks Debian packages" "dpkg-dev debhelper dh-python fakeroot lintian" has_packaging
        need "debootstrap, for clean systems to install them in" "debootstrap" has_command debootstrap
    fi
    if [[ $sets == *" arm64 "* && $(uname -m) == x86_64 ]]; then
        need "a compiler for 64-bit ARM, its libraries, and qemu-user to run what it makes" \
            "gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libgomp1:arm64 libyaml-dev:arm64 libjansson-dev:arm64 libpcre2-dev:arm64 libcmocka-dev:arm64" has_arm64
    fi
}

find_missing
if [[ ${#what[@]} -eq 0 ]]; then
    exit 0
fi

# --- installing it ----------------------------------------------------------------------------------------------------------
give_up() {
    echo "$1" >&2
    printf '  - %s\n' "${what[@]}" >&2
    exit 3
}

distribution=$(. /etc/os-release 2>/dev/null && echo "${ID:-unknown}")
case $distribution in
debian | ubuntu) ;;
*) give_up "Packages can be installed here only on Debian and Ubuntu (this is $distribution). Please install, by its own means:" ;;
esac

as_root=()
if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null || give_up "Not root, and there is no sudo. As root: apt-get install ${missing[*]}   It is missing:"
    as_root=(sudo)
fi

echo "Missing here:"
printf '  - %s\n' "${what[@]}"
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@"; }
# Debian has other architectures' libraries beside its own; Ubuntu keeps them on another server.
[[ ${missing[*]} != *:arm64* ]] || "${as_root[@]}" dpkg --add-architecture arm64
apt update >"$scratch/log" 2>&1 || tail -3 "$scratch/log" >&2 # one broken source need not matter
find_missing # again: without package lists, the version behind clang was not known
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
echo "Installing the packages: ${missing[*]}"
apt install --no-install-recommends "${missing[@]}" >"$scratch/log" 2>&1 || tail -5 "$scratch/log" >&2
hash -r
find_missing
if [[ ${#what[@]} -ne 0 ]]; then
    give_up "After installing, these are still missing:"
fi
