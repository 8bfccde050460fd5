# The build that users install is hardened: configured as `make` does, every object and the command have the flags; and no file that
# is built or installed looks for libraries in the current folder, or where anybody may write.
source "$MEZZO_TESTS/cli/check.bash" || exit 1
command -v cmake >/dev/null && command -v ninja >/dev/null || exit 77
last="cmake -DMEZZO_TESTS=OFF"
cmake -S "$MEZZO_SOURCE" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DMEZZO_TESTS=OFF -DMEZZO_CUDA=OFF >"$OUT" 2>"$ERR" ||
    fail "it cannot be configured"
objects=$(grep -c '^build .*\.c\.o: C_COMPILER' build/build.ninja)
for flag in -fstack-protector-strong -D_FORTIFY_SOURCE=2; do
    [[ $(grep -c "FLAGS = .*$flag" build/build.ninja) -ge $objects ]] || fail "an object is built without $flag"
done
grep -q 'LINK_FLAGS = .*-z,relro.*-z,now' build/build.ninja || fail "nothing is linked with its relocations bound"
grep -q -- '-DMEZZO_HARDEN\|MEZZO_HARDEN:BOOL=ON' build/CMakeCache.txt || fail "MEZZO_HARDEN is off"

# What the flags make of a program: a small one of the same functions of cmake/MezzoFlags.cmake.
command -v readelf >/dev/null || exit 0
# The folders of every ELF file below $1: each must be absolute or begin at the file itself.
search_paths() {
    local file path folder
    while read -r file; do
        [[ $(head -c 4 "$file" | tail -c 3 | tr -d '\0') == ELF ]] || continue
        path=$(readelf -d "$file" 2>/dev/null | sed -nE 's/.*\((RPATH|RUNPATH)\).*\[(.*)\]$/\2:end/p')
        while [[ $path == *:* ]]; do
            folder=${path%%:*} path=${path#*:}
            [[ $folder == /* || $folder == \$ORIGIN* ]] || fail "$file looks for libraries in \"$folder\", which depends on the current folder"
            [[ -z $(find "$folder" -maxdepth 0 -perm -0002 2>/dev/null) ]] || fail "$file looks for libraries in $folder, where anybody may write"
        done
    done < <(find "$1" -type f \( -perm -0100 -o -name '*.so*' \) -not -path '*/CMakeFiles/*')
}
last="the search paths for libraries"
search_paths "$MEZZO_BUILD"
cmake --install "$MEZZO_BUILD" --prefix "$PWD/installed" >"$OUT" 2>"$ERR" || fail "it cannot be installed"
search_paths "$PWD/installed"

mkdir small
cat >small/main.c <<'END'
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    char text[16];
    memcpy(text, argv[0], (size_t)argc);
    text[15] = 0;
    return printf("%s", text) < 0;
}
END
cat >small/CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.20)
project(small VERSION 1 LANGUAGES C)
include($MEZZO_SOURCE/cmake/MezzoFlags.cmake)
add_executable(small main.c)
mezzo_flags(small)
mezzo_link_flags(small)
END
last="a small program, hardened"
cmake -S small -B small/build -G Ninja -DCMAKE_BUILD_TYPE=Release >"$OUT" 2>"$ERR" && cmake --build small/build >"$OUT" 2>"$ERR" ||
    fail "it cannot be built"
readelf -Whldn --dyn-syms small/build/small >"$OUT" 2>"$ERR"
shows "$OUT" "DYN (" GNU_RELRO BIND_NOW __stack_chk_fail __memcpy_chk
grep -E 'GNU_STACK.*RWE' "$OUT" && fail "the stack can be executed"
grep -E 'RPATH|RUNPATH' "$OUT" && fail "libraries are looked for in a folder of the build"
# The linked program says so too only where the system's start files do.
if grep -q -- -fcf-protection small/build/build.ninja && [[ $(uname -m) == x86_64 ]]; then
    readelf -Wn small/build/CMakeFiles/small.dir/main.c.o >"$OUT" 2>"$ERR"
    shows "$OUT" IBT SHSTK
fi
exit 0
