#!/usr/bin/env bash
# Every op of ops.def has its row in docs/OPS.md, every precision of precisions.def its row in docs/train.md (the unit test
# test_precisions compares the cells), every local link of the documents leads somewhere, every source file that a document or a comment names is
# there, the guide to precisions shows what was measured, and the version is the same in the header, the changelog and the package.
set -euo pipefail
cd "$(dirname "$0")/.."

broken=0
if [[ -f docs/OPS.md && -f src/graph/ops.def ]]; then
    # An op's row is a table row whose first cell is its name, with or without backticks.
    for op in $(sed -nE 's/^OP\(([a-zA-Z0-9_]+).*/\1/p' src/graph/ops.def | tr '[:upper:]' '[:lower:]'); do
        if ! grep -qiE "^\| *\`?$op\`? *\|" docs/OPS.md; then
            echo "docs/OPS.md: no row for the op $op of src/graph/ops.def"
            broken=1
        fi
    done
fi

for precision in $(sed -nE 's/^PRECISION\([A-Z0-9_]+, "([^"]+)".*/\1/p' src/base/precisions.def); do
    if ! grep -qF "| \`$precision\` | \`" docs/train.md; then
        echo "docs/train.md: no row for the precision $precision of src/base/precisions.def"
        broken=1
    fi
done

for rule in $(sed -nE 's/^RULE\([A-Z0-9_]+, "([^"]+)".*/\1/p' src/study/agree/rules.def); do
    if [[ $rule != note ]] && ! grep -qE "^\|.*\`$rule\`.*\|" docs/doctor.md docs/audit.md; then
        echo "docs/doctor.md, docs/audit.md: no row for the rule $rule of src/study/agree/rules.def"
        broken=1
    fi
done

while IFS=: read -r file link; do
    target=${link%%#*}
    if [[ -n $target && ! -e $(dirname "$file")/$target ]]; then
        echo "$file: the link $link leads nowhere"
        broken=1
    fi
done < <(find README.md docs bench -name '*.md' -print0 2>/dev/null |
    xargs -0 -r grep -HoE '\]\([^):]+\)' | sed -E 's/\]\(([^)]*)\)/\1/')

# A release has one version: the header's, the newest one of CHANGELOG.md and that of the Debian package.
in_header=$(awk '/^#define MEZZO_VERSION_(MAJOR|MINOR|PATCH)/ { printf "%s%s", dot, $3; dot = "." }' include/mezzo/version.h)
in_changelog=$(sed -nE 's/^## ([0-9]+\.[0-9]+\.[0-9]+).*/\1/p' CHANGELOG.md | head -n 1)
in_package=$(sed -n '1s/.*(\(.*\)).*/\1/p' debian/changelog)
if [[ $in_header != "$in_changelog" || $in_header != "$in_package" ]]; then
    echo "include/mezzo/version.h has version $in_header, CHANGELOG.md $in_changelog, debian/changelog $in_package"
    broken=1
fi

# By its name or the end of its path. What other projects call theirs stands in `foreign`; NAME, * and {a,b} stand for several.
python3 - <<'END' || broken=1
import re, subprocess, sys

foreign = {"llm.c", "train_gpt2.py", "train_gpt2.c", "train.py", "prepare.py", "sample.py", "bench.py", "encoder.py", "nvml.h"}
foreign_folders = ("config/", "data/shakespeare_char/", "data/openwebtext/", "tiktoken_ext/")
name = re.compile(r"(?<![\w*{}$/.-])(?:\.{1,2}/)*([\w-]+(?:[/.][\w-]+)*\.(?:c|h|cu|sh|py))(?![\w*{.]*[*{/\w])")
comment = {"md": r"^(.*)$", "c": r"(?://|/\*)(.*)$", "h": r"(?://|/\*)(.*)$", "cu": r"(?://|/\*)(.*)$", "cuh": r"(?://|/\*)(.*)$",
           "def": r"//(.*)$", "sh": r"^\s*#(?!!|include)(.*)$", "py": r"^\s*#(?!!)(.*)$", "txt": r"^\s*#(.*)$", "cmake": r"^\s*#(.*)$"}
files = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True, check=True).stdout.split("\n")
ends = {"/".join(parts[i:]) for parts in (f.split("/") for f in files) for i in range(len(parts))}
wrong = 0
for file in files:
    end = file.rsplit(".", 1)[-1]
    if end not in comment or file.startswith(("tests/golden/data/", "tests/fuzz/corpus/")) or file == "CHANGELOG.md":
        continue
    try:
        lines = open(file, encoding="utf-8").read().split("\n")
    except FileNotFoundError:  # removed, and not committed yet
        continue
    for number, line in enumerate(lines, 1):
        part = re.search(comment[end], line)
        for path in name.findall(part[1]) if part else []:
            stem = path.rsplit("/", 1)[-1].rsplit(".", 1)[0]
            if len(stem) > 1 and path not in ends and "NAME" not in path and path not in foreign and not path.startswith(foreign_folders):
                print(f"{file}:{number}: there is no {path}")
                wrong = 1
sys.exit(wrong)
END

bench/which_precision.py --check || broken=1
scripts/onnx-ops.sh --check || broken=1

exit $broken
