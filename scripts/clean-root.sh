#!/usr/bin/env bash
# Installs Mezzo as users do into clean Debian roots, made by debootstrap in build/roots: as root, with network.
#   scripts/clean-root.sh [SUITE...]      bookworm is Debian 12, trixie Debian 13 [both]
# In each: its own compiler builds the packages from the source package (scripts/deb.sh); apt installs them; the command, its pages, its
# completion, find_package and the Python module are used. In another root pip installs the wheel (scripts/wheel.sh) and the notebook runs.
# Transcripts stay in build/roots. MIRROR names Debian's mirror [the one that apt uses here].
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $(id -u) -eq 0 ]] || { echo "debootstrap and chroot need root"; exit 1; }
roots=$PWD/build/roots
mirror=${MIRROR:-$(apt-get indextargets --format '$(SITE)' 'ORIGIN: Debian' | head -n 1)}
[[ -n $mirror ]] || { echo "apt names no mirror of Debian here: set MIRROR"; exit 1; }
suites=("$@")
[[ $# -gt 0 ]] || suites=(bookworm trixie)
source=$(ls build/deb/*.dsc 2>/dev/null) || { echo "no source package: run scripts/deb.sh first"; exit 1; }
wheel=$(ls build/wheel/*.whl 2>/dev/null) || { echo "no wheel: run scripts/wheel.sh first"; exit 1; }

root() { # SUITE NAME: a minimal system in $roots/NAME
    local folder=$roots/$2
    rm -rf --one-file-system "${folder:?}"
    mkdir -p "$folder"
    if [[ ! -f $roots/$1.tar ]]; then
        debootstrap --variant=minbase "$1" "$folder" "$mirror" >"$roots/$1-debootstrap.log" 2>&1
        tar -C "$folder" --exclude ./dev -cf "$roots/$1.tar" .
        rm -rf --one-file-system "${folder:?}"
        mkdir -p "$folder"
    fi
    tar -C "$folder" -xf "$roots/$1.tar"
    mkdir -p "$folder/dev" "$folder/work"
    mkdir -p "$folder/etc/ssl"
    cp /etc/resolv.conf /etc/hosts "$folder/etc/"
    # pip trusts there what it trusts on this machine.
    [[ ! -f /etc/pip.conf ]] || cp /etc/pip.conf "$folder/etc/"
    cp "${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" "$folder/etc/ssl/trusted_by_pip.crt"
}
inside() { # NAME: runs the program on stdin there; the transcript is $roots/NAME.log
    local folder=$roots/$1 status=0
    mount --bind /dev "$folder/dev"
    mount --bind /dev/pts "$folder/dev/pts"
    mount -t proc proc "$folder/proc"
    env -i DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PIP_CERT=/etc/ssl/trusted_by_pip.crt PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        chroot "$folder" /bin/bash -e -o pipefail -s >"$folder.log" 2>&1 || status=$?
    umount "$folder/proc" "$folder/dev/pts" "$folder/dev"
    [[ $status -eq 0 ]] || { tail -n 30 "$folder.log"; echo "failed: $folder.log"; exit 1; }
}

for suite in "${suites[@]}"; do
    mkdir -p "$roots"
    root "$suite" "$suite-build"
    cp "${source%.dsc}".* "$roots/$suite-build/work/"
    inside "$suite-build" <<'IN_ROOT'
cd /work
apt-get -qq update
apt-get -qq -y install --no-install-recommends dpkg-dev build-essential fakeroot
apt-get -qq -y build-dep --no-install-recommends ./mezzo_*.dsc
dpkg-source -x mezzo_*.dsc tree
cd tree
dpkg-buildpackage -us -uc -b
IN_ROOT

    root "$suite" "$suite-apt"
    cp "$roots/$suite-build"/work/*.deb examples/gpt.c "$roots/$suite-apt/work/"
    rm -f "$roots/$suite-apt/work/"*dbgsym*
    inside "$suite-apt" <<'IN_ROOT'
cd /work
show() { echo "\$ $*"; "$@"; }
. /etc/os-release
echo "$PRETTY_NAME, $(dpkg -l | grep -c ^ii) packages"
apt-get -qq update
used() { du -skx --exclude=/var --exclude=/work / | cut -f1; }
before=$(used)
show apt-get -qq -y install --no-install-recommends ./mezzo_*.deb ./libmezzo0_*.deb
echo "the command and what it needs: $(($(used) - before)) KiB on disk"
show mezzo --version
show mezzo explain --toy >explained
head -n 12 explained
show mezzo doctor || [[ $? -eq 1 ]] # 1: it has something to say
show apt-get -qq -y install --no-install-recommends ./*.deb man-db bash-completion cmake make gcc g++ libc6-dev pkg-config
echo "\$ man mezzo-train"
MANWIDTH=100 man mezzo-train >page
head -n 12 page
cat >complete.sh <<'IN_SHELL'
. /usr/share/bash-completion/bash_completion
. /usr/share/bash-completion/completions/mezzo
function=$(complete -p mezzo | sed 's/.*-F \([^ ]*\).*/\1/')
type_words() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMPREPLY=()
    COMP_POINT=${#COMP_LINE}
    $function "$1" "${@: -1}" "${@: -2:1}" || true
    echo "$*<TAB> ${COMPREPLY[*]}"
}
type_words mezzo tr
type_words mezzo train --prec
type_words mezzo train --precision b
IN_SHELL
bash complete.sh | tee completed
grep -q 'tr<TAB> train' completed
grep -q -e '--prec<TAB> --precision' completed
cat >CMakeLists.txt <<'IN_CMAKE'
cmake_minimum_required(VERSION 3.25)
project(own C)
find_package(mezzo 0.2 REQUIRED COMPONENTS static)
add_executable(own_shared gpt.c)
target_link_libraries(own_shared mezzo::mezzo)
add_executable(own_static gpt.c)
target_link_libraries(own_static mezzo::static)
IN_CMAKE
show cmake -S . -B own >/dev/null
show cmake --build own >/dev/null
cc -o own/own_pc gpt.c $(pkg-config --cflags --libs mezzo) -lm
for program in own_shared own_static own_pc; do
    mkdir "run_$program"
    echo "\$ $program"
    (cd "run_$program" && ../own/$program) | tail -n 1
done
show python3 -c 'import mezzo; print(mezzo.doctor().device["description"], mezzo.memory(model="gpt2-124M").rows[0])'
show apt-get -qq -y remove mezzo mezzo-mpi libmezzo0 libmezzo-dev python3-mezzo
hash -r
! command -v mezzo
echo "all of it worked, and it is gone again"
IN_ROOT

    root "$suite" "$suite-pip"
    cp "$wheel" examples/which_precision.ipynb "$roots/$suite-pip/work/"
    inside "$suite-pip" <<'IN_ROOT'
cd /work
show() { echo "\$ $*"; "$@"; }
. /etc/os-release
echo "$PRETTY_NAME"
apt-get -qq update
apt-get -qq -y install --no-install-recommends python3-venv
python3 -m venv venv
before=$(du -sk venv | cut -f1)
show venv/bin/pip install --quiet ./*.whl
echo "the wheel: $(stat -c %s ./*.whl) bytes; installed, with what it needs: $(($(du -sk venv | cut -f1) - before)) KiB"
show venv/bin/pip list
show venv/bin/mezzo --version
show venv/bin/mezzo explain --toy >explained
head -n 12 explained
show venv/bin/pip install --quiet nbconvert ipykernel
show venv/bin/python3 -m nbconvert --to notebook --execute --output ran.ipynb which_precision.ipynb
show venv/bin/python3 -m nbconvert --to html ran.ipynb
venv/bin/python3 - <<'IN_PYTHON'
import json
for cell in json.load(open("ran.ipynb"))["cells"]:
    for output in cell.get("outputs", []):
        print("".join(output.get("text", "")), end="")
IN_PYTHON
IN_ROOT
    cp "$roots/$suite-pip/work/ran.html" "$roots/$suite-notebook.html"
    rm -rf --one-file-system "$roots/$suite"-{build,apt,pip}
    grep -h -E 'on disk|all of it|^the wheel' "$roots/$suite"-{apt,pip}.log | sed "s/^/$suite: /"
done
