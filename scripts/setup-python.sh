#!/usr/bin/env bash
# Makes build/python, a virtual environment with what the tests compare against: real readers of the files that Mezzo writes.
# wandb and mlflow are what contrib hands runs to, pytest runs the tests of the module in python/. Tests only; the library and the command need no Python. Without PyPI those tests are skipped, except in CI.
set -uo pipefail
cd "$(dirname "$0")/.."

# Later setuptools lack pkg_resources, which tensorboard imports.
packages=(numpy pytest safetensors gguf tensorboard 'setuptools<81' wandb mlflow-skinny sqlalchemy alembic)
venv=build/python
stamp=$venv/installed
if [[ -f $stamp && $(<"$stamp") == "${packages[*]}" ]]; then
    exit 0
fi

echo "Installing into $venv: ${packages[*]}"
mkdir -p build
log=build/python.log
if rm -rf "$venv" && python3 -m venv "$venv" >"$log" 2>&1 &&
    "$venv/bin/python3" -m pip install --quiet --disable-pip-version-check "${packages[@]}" >>"$log" 2>&1; then
    echo "${packages[*]}" >"$stamp"
    exit 0
fi
rm -rf "$venv"
tail -3 "$log" >&2
if [[ ${CI:-} == true ]]; then
    echo "The Python packages could not be installed; see $log." >&2
    exit 3
fi
echo "Notice: no Python packages, so the tests that read Mezzo's files with safetensors and tensorboard are skipped; see $log." >&2
