#!/usr/bin/env bash
# bench/rfc_text.sh OUT: the longest English text of one kind that Debian's packages have, to train on: the texts of Proposed Standard RFCs (doc-rfc-std-proposed,
# Debian 12, non-free: RFCs may be passed on as they are, not changed, so nothing of them is kept here; they are fetched where something is measured,
# from the mirror that apt uses here or MIRROR names).
# The 20th, 180th, 340th … RFC validate; of the others every EVERY-th (5; 1: 85 million tokens) is trained on. They follow each other in the order of their numbers,
# a line of dashes after each, without headers and feet of pages, indentation and blank lines in a row. OUT/train.bin and OUT/val.bin are their tokens, GPT-2's;
# OUT/text.txt is both as one text, what validates last.
# DEB names a package that is there already, MEZZO the command.
set -euo pipefail
out=$(realpath -m "${1:?usage: bench/rfc_text.sh OUT}")
root=$(cd "$(dirname "$0")/.." && pwd)
mezzo=${MEZZO:-$root/build/cuda/mezzo}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
deb=${DEB:+$(realpath "$DEB")}
if [[ -z $deb ]]; then
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    mirror=${MIRROR:-$(apt-get indextargets --format '$(SITE)' 'ORIGIN: Debian' | head -n 1)}
    [[ -n $mirror ]] || { echo "apt names no mirror of Debian here: set MIRROR or DEB" >&2 && exit 2; }
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm non-free" >"$work/sources.list"
    apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache"
        -o APT::Sandbox::User=root)
    "${apt[@]}" update
    (cd "$work" && "${apt[@]}" download doc-rfc-std-proposed)
    deb=$(echo "$work"/*.deb)
fi
dpkg-deb -x "$deb" "$work/files"
python3 - "$work/files/usr/share/doc/RFC" "$work" "${EVERY:-5}" <<'END_OF_SCRIPT'
import gzip, pathlib, re, sys

files, out, every = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
number = re.compile(r"rfc(\d+)\.txt(\.gz)?$")
texts = sorted((int(m[1]), p) for p in files.rglob("rfc*") if p.is_file() and (m := number.match(p.name)))
foot = re.compile(r".*\[Page [0-9ivxlc]+\]\s*$", re.I)
head = re.compile(r"RFC \d+\s.*\s(19|20)\d\d\s*$")
parts = {"train": [], "val": []}
texts = [t for t in texts if t[1].stat().st_size > 1000]
chosen = [("val", t[1]) for t in texts[19::160]] + [("train", t[1]) for t in [t for i, t in enumerate(texts) if i % 20 != 19][::every]]
for part, path in chosen:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", "replace").lstrip("\ufeff")
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.replace("\f", "\n").split("\n") if not foot.match(line) and not head.match(line)]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    parts[part].append(text + "\n" + "-" * 16 + "\n")
for name, those in parts.items():
    (out / f"{name}.txt").write_text("".join(those), encoding="utf-8")
    print(f"{name}: {len(those)} RFCs, {sum(len(t.encode()) for t in those):,} bytes")
END_OF_SCRIPT
cat "$work"/{train,val}.txt >"$out/text.txt"
for part in train val; do
    "$mezzo" data "$work/$part.txt" --tokenizer gpt2 --split 1 --out "$work/$part" >/dev/null
    mv "$work/$part/train.bin" "$out/$part.bin"
done
mv "$work/train/tokenizer.json" "$out"
ls -l "$out"
