#!/usr/bin/env bash
# Puts the package with its module for GPUs, and what its tests import, into a folder, for a machine with a GPU and PyTorch that
# cannot build or download.
#
#   bash examples/pytorch/tests/pack_for_gpu.sh FOLDER [ARCHITECTURE]
#
# There: PYTHONPATH=FOLDER python3 -m pytest examples/pytorch/tests/gpu
#        SLAMB_GPU_PYTHON=FOLDER bash tests/run.sh --gpu report.md --stage pytorch
# Needs nvcc. ARCHITECTURE: a value of CMAKE_CUDA_ARCHITECTURES (90).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="${1:?the folder is missing}"
mkdir -p "$folder"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/python"
pip() { "$work/python/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip wheel --no-deps "$here" -w "$work" --config-settings=cmake.define.SLAMB_PYTHON_CUDA=ON \
  "--config-settings=cmake.define.SLAMB_LEVELS=v3;v4" "--config-settings=cmake.define.CMAKE_CUDA_ARCHITECTURES=${2:-90}"
pip install --no-deps --upgrade --target "$folder" "$work"/slamb-*.whl pytest pluggy iniconfig packaging exceptiongroup tomli pygments
# The backend of nanobind for every Python, since it is not known which one the other machine has.
for version in 3.10 3.11 3.12 3.13 3.14; do
  pip download --no-deps --python-version "$version" --only-binary :all: nanobind-backend -d "$work/backends"
done
for wheel in "$work"/backends/*.whl; do
  "$work/python/bin/python" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' "$wheel" "$folder"
done
du -sh "$folder"
