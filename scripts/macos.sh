#!/usr/bin/env bash
# Checks that every source compiles for macOS on arm64 as far as clang's syntax check can tell: with Darwin's headers, as the
# Python package ziglang has them, and ours of Linux for the libraries. Nothing is linked, nothing runs.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/build/macos
if [[ ! -d $out/tools/lib ]]; then
    python3 -m venv "$out/tools"
    "$out/tools/bin/pip" install --quiet --disable-pip-version-check ziglang
fi
darwin=$(echo "$out"/tools/lib/python3*/site-packages/ziglang/lib/libc/include/any-darwin-any)
[[ -d $darwin ]] || { echo "the package ziglang has no headers of Darwin any more"; exit 1; }
mkdir -p "$out/include"
for header in jansson.h jansson_config.h yaml.h pcre2.h png.h pngconf.h pnglibconf.h utf8proc.h; do
    cp -L "$(find /usr/include /usr/local/include -name $header | head -n 1)" "$out/include/"
done
# Each level of the kernels has flags of its own: cmake/CpuKernels.cmake. Neither CUDA nor MPI is there.
sources=$(git ls-files 'src/*.c' 'cli/*.c' 'tools/radio/*.c' | grep -vE '^src/(backend/cuda|dist/mpi)/|/kernels/(avx|amx|neonbf16)[a-z0-9]*_|^src/onnx/[^n]')
# shellcheck disable=SC2086 # a list
printf '%s\n' $sources | xargs -P "$(nproc)" -n 16 clang --target=arm64-apple-macos13 -std=gnu11 -fsyntax-only -fopenmp -Wall -Wextra -Werror \
    -Wno-nullability-completeness -Wno-expansion-to-defined -nostdlibinc -isystem "$darwin" -isystem "$out/include" -I. -Iinclude -Isrc -Icli \
    -include base/macos.h -DMEZZO_VERSION='"0"' -DMEZZO_PNG -DMEZZO_UTF8PROC
echo "macOS on arm64: the syntax of $(wc -w <<<"$sources") sources is right"
