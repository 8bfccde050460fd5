#!/usr/bin/env bash
# Builds the Debian packages of what is committed (HEAD) into build/deb: the source package, mezzo, libmezzo0, libmezzo-dev, mezzo-mpi and
# python3-mezzo. lintian checks them; its errors and warnings fail. What it needs: scripts/setup.sh build deb.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/build/deb
version=$(sed -n '1s/.*(\(.*\)).*/\1/p' debian/changelog)
in_header=$(awk '/^#define MEZZO_VERSION_(MAJOR|MINOR|PATCH)/ { printf "%s%s", dot, $3; dot = "." }' include/mezzo/version.h)
[[ $version == "$in_header" ]] || { echo "debian/changelog has version $version, include/mezzo/version.h $in_header"; exit 1; }

rm -rf "$out"
mkdir -p "$out/mezzo-$version"
git archive HEAD | tar -x -C "$out/mezzo-$version" # without what was built or made here
(cd "$out/mezzo-$version" && dpkg-buildpackage --unsigned-source --unsigned-changes) >"$out/build.log" 2>&1 ||
    { tail -n 30 "$out/build.log"; exit 1; }
rm -rf "$out/mezzo-$version"
lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$out"/*.changes
(cd "$out" && stat -c '%s bytes %n' ./*.deb ./*.dsc ./*.tar.*)
