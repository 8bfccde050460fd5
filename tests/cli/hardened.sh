# The build that users install is hardened: configured as `make` does, every object and the command have the flags.
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
