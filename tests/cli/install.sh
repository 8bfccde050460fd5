#!/usr/bin/env bash
# What `make install` leaves is enough to compile and run a program: headers that stand alone in C and C++, both libraries, the
# pkg-config file, the command; and the shared library exports nothing but mezzo_*.
set -euo pipefail

# A sanitized library asks its programs for the sanitizer's flags.
grep -q 'MEZZO_SANITIZE:BOOL=ON' "$MEZZO_BUILD/CMakeCache.txt" && exit 77

prefix=$PWD/prefix
rm -rf "$prefix"
cmake --install "$MEZZO_BUILD" --prefix "$prefix" >/dev/null
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name mezzo.pc)")
export PKG_CONFIG_PATH
libdir=$(dirname "$PKG_CONFIG_PATH")
cc=${CC:-cc}

for header in "$prefix"/include/mezzo/*.h; do
    echo "#include \"mezzo/$(basename "$header")\"" >one.c
    "$cc" -std=c11 -Wall -Wextra -Wconversion -Wpedantic -Werror -fsyntax-only -I"$prefix/include" one.c
    if command -v c++ >/dev/null; then
        c++ -x c++ -std=c++17 -Wall -Wextra -Werror -fsyntax-only -I"$prefix/include" one.c
    fi
done

cat >program.c <<'END'
#include <stdio.h>
#include <mezzo/dtype.h>
int main(void) {
    mezzo_precision precision;
    if (mezzo_precision_parse("fp99", &precision) != MEZZO_ERR_INVALID)
        return 1;
    printf("%04x %s\n", mezzo_f32_to_f16(1.0f), mezzo_error_message());
    return 0;
}
END
# shellcheck disable=SC2046
"$cc" program.c -o shared $(pkg-config --cflags --libs mezzo) -Wl,-rpath,"$(pkg-config --variable=libdir mezzo)" # as README says
# shellcheck disable=SC2046
"$cc" program.c -o static $(pkg-config --cflags mezzo) "$libdir/libmezzo.a" $(pkg-config --static --libs-only-l mezzo | sed 's/-lmezzo//')
expected='3c00 unknown precision "fp99"'
for program in ./shared ./static; do
    output=$($program)
    [[ $output == "$expected"* ]] || { echo "$program printed: $output"; exit 1; }
done
readelf -d shared | grep -q 'libmezzo\.so\.0]' || { echo "the program does not ask for libmezzo.so.0"; exit 1; }

exported=$(nm -D --defined-only "$libdir/libmezzo.so" | awk '$3 !~ /^mezzo_.*@@MEZZO_0$/ && $3 != "MEZZO_0" { print $3 }')
[[ -z $exported ]] || { echo "libmezzo.so exports: $exported"; exit 1; }

if [[ -e $MEZZO ]]; then
    "$prefix/bin/mezzo" --help >/dev/null
    docs=$("$prefix/bin/mezzo" doctor --help | sed -n 's/^docs\/ is //p')
    [[ $docs == "$prefix/share/doc/mezzo/docs" && -s $docs/doctor.md && ! -e $docs/dev ]] || { echo "the documents that --help names are not at \"$docs\""; exit 1; }
fi

# find_package: the shared library, and the static one as a component.
mkdir -p consumer
cp program.c consumer
cat >consumer/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C)
find_package(mezzo 0.2 REQUIRED COMPONENTS static)
add_executable(shared program.c)
target_link_libraries(shared PRIVATE mezzo::mezzo)
add_executable(static program.c)
target_link_libraries(static PRIVATE mezzo::static)
END
cmake -S consumer -B consumer/build -DCMAKE_C_COMPILER="$(command -v "$cc")" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build consumer/build >/dev/null
for program in consumer/build/shared consumer/build/static; do
    [[ $($program) == "$expected"* ]] || { echo "$program, by find_package, does not run"; exit 1; }
done

# The pages and completions that the command prints are there, a page for each subcommand.
[[ ! -e $MEZZO ]] || for page in $("$MEZZO" --help | sed -nE 's/^  ([a-z]+)  +.*/-\1/p') ""; do
    [[ -s $prefix/share/man/man1/mezzo$page.1 ]] || { echo "no man page of mezzo$page"; exit 1; }
done
