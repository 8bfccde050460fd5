#!/usr/bin/env bash
# Rules that no compiler checks: what stands in the root, lengths of files and lines, no unfinished marks, no registry's host, a library
# that never prints, exits or aborts, and a shared library that exports only mezzo_*, as version MEZZO_0. scripts/check-source.sh [LIBRARY]
set -euo pipefail
cd "$(dirname "$0")/.."

broken=0
complain() {
    echo "$1"
    broken=1
}
sources() { find include src cli tools examples tests bench \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 2>/dev/null; }

# A run folder or a text that somebody tried a command on is not a part of the project.
root='.ci|.clang-format|.gitignore|CHANGELOG.md|CMakeLists.txt|CONTRIBUTING.md|LICENSE|Makefile|README.md|THIRD-PARTY.md'
root+='|bench|cli|cmake|contrib|data|debian|docs|examples|include|pyproject.toml|python|recipes|scripts|src|tests|tools'
found=$(git ls-files | cut -d / -f 1 | sort -u | grep -vxE "$root" || true)
[[ -z $found ]] || complain "$found
committed in the root, where only its list in scripts/check-source.sh belongs"

while read -r lines file; do
    [[ $file == total ]] || ((lines <= 800)) || complain "$file: $lines lines; 800 are the limit"
done < <(sources | xargs -0 wc -l)

found=$(git ls-files '*.[ch]' '*.cu' '*.cuh' '*.def' '*.cpp' |
    LC_ALL=C.UTF-8 xargs grep -nP '^\X{121,}' | cut -c 1-100 || true)
[[ -z $found ]] || complain "$found
lines of more than 120 columns"

marks='TO''DO|FIX''ME|XX''X|HA''CK'
found=$(sources | xargs -0 grep -nwE "$marks" || true)
[[ -z $found ]] || complain "$found"

# Packages come from where the system or pip is set up to look.
hosts='(deb|security|snapshot|ftp)[.]debian[.]org|(archive|ports|security)[.]ubuntu[.]com|pypi[.]org|pythonhosted[.]org|npmjs[.](org|com)|crates[.]io|proxy[.]golang'
found=$(git grep -nIE "$hosts" || true)
[[ -z $found ]] || complain "$found
the host of a package registry: take the one that the system's own configuration names"

found=$(grep -rnE --include='*.[ch]' '\b(printf|puts|putchar|perror|exit|_exit|abort|assert|setlocale)[[:space:]]*\(|\b(stdout|stderr)\b' src include |
    grep -vE '^[^:]*:[0-9]+:[[:space:]]*(//|\*)|//.*\b(printf|puts|perror|exit|_exit|abort|assert|stdout|stderr)\b|format\(printf|"/dev/std(out|err)"' || true)
[[ -z $found ]] || complain "$found
the library never prints, exits or aborts"

found=$(grep -rnE --include='*.[ch]' '\bstrto(d|f|ld)[[:space:]]*\(' src | grep -vE '^src/base/text.c:|^[^:]*:[0-9]+:[[:space:]]*//' || true)
[[ -z $found ]] || complain "$found
a program's locale may have a decimal comma: mz_strtod reads points"

library=${1:-build/release/libmezzo.so}
if [[ -e $library ]]; then
    found=$(nm -D --defined-only "$library" | awk '$3 !~ /^mezzo_.*@@MEZZO_0$/ && $3 != "MEZZO_0" { print $3 }')
    [[ -z $found ]] || complain "$library exports: $found"
fi

exit $broken
