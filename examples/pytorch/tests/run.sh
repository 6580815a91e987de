#!/usr/bin/env bash
# The tests of the Python package: installs it into a virtual environment of its own, and runs them there. Also those of
# examples/many_ranks, which are in Python.
#
#   bash examples/pytorch/tests/run.sh [--newest | --clients] [argument of pytest]…
#
# With the torch of the system's Python (Debian: python3-torch), or, with --newest, the newest torch on PyPI: 3 GB. The environment
# is build/pytorch/system or build/pytorch/newest, and is used again by later runs. PYTHON names the interpreter. Needs a C++20
# compiler; pip fetches everything else. The last line of pytest has the number of tests. If CI=true, the package is installed
# from its source archive. Without an argument two processes of pytest share the tests, and each prints its number.
# --clients: only the tests of the folder clients, which no other run includes, with the newest torch, transformers, accelerate,
# lightning, deepspeed and torchtitan on PyPI, and other optimizers, in build/pytorch/clients: 5 GB.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

kind=system
case "${1:-}" in
  --newest) kind=newest; shift ;;
  --clients) kind=clients; shift ;;
  -h | --help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac

# The first interpreter that can do it.
python=
for candidate in ${PYTHON:+"$PYTHON"} /usr/bin/python3 python3; do
  command -v "$candidate" >/dev/null || continue
  "$candidate" -c 'import ensurepip, venv' 2>/dev/null || continue
  if [[ $kind != system ]] || "$candidate" -c 'import torch' 2>/dev/null; then
    python="$candidate"
    break
  fi
done
if [[ -z "$python" ]]; then
  echo "examples/pytorch/tests/run.sh: no Python with venv$([[ $kind != system ]] || echo ' and torch') was found;" \
       "on Debian: apt-get install python3-venv python3-torch" >&2
  exit 1
fi

environment="$here/../../build/pytorch/$kind"
options=()
[[ $kind == system ]] && options=(--system-site-packages)
"$python" -m venv ${options[@]+"${options[@]}"} "$environment"
pip() { "$environment/bin/python" -m pip --disable-pip-version-check install --quiet "$@"; }
[[ $kind == newest ]] && pip --upgrade torch numpy matplotlib tqdm
if [[ $kind == clients ]]; then
  pip --upgrade torch numpy transformers accelerate lightning torchtitan setuptools wheel
  pip --upgrade --no-deps torchft timm bitsandbytes  # what they need besides is for what is not tested
  export DS_BUILD_OPS=0  # the builds of deepspeed read the version of torch
  pip --upgrade --no-build-isolation deepspeed
  # The last version with 1-bit optimizers, as a folder of sources beside the environment.
  removed="$here/../../build/pytorch/deepspeed-0.19.6"
  [[ -d "$removed" ]] || pip --no-deps --no-build-isolation --target "$removed" deepspeed==0.19.6
fi
pip pytest pytest-timeout
# The archive shows that it has all that its build needs. From the checkout, pip compiles only what has changed.
if [[ "${CI:-}" == true ]]; then
  archive="$(mktemp -d)"
  pip build
  "$environment/bin/python" -m build --sdist --outdir "$archive" "$here"
  pip --force-reinstall "$archive"/slamb-*.tar.gz
  rm -r "$archive"
else
  pip --force-reinstall "$here"
fi

# Anywhere but in the folder of a package named slamb.
cd "$environment"
"$environment/bin/python" -c 'import slamb, torch; print("slamb", slamb.__version__, "with torch", torch.__version__)'
export OMP_NUM_THREADS=1
tests=("$here/tests" "$here/../many_ranks/tests")
[[ $kind == clients ]] && tests=("$here/tests/clients")
# Twice what a launch of ranks may take (tests/launch.py).
pytest=("$environment/bin/python" -m pytest -q -p no:cacheprovider --timeout 600)
if [[ $kind == clients ]] || (($# > 0)); then exec "${pytest[@]}" "${tests[@]}" "$@"; fi

# Two processes, because the tests that start programs mostly wait. All of those are in one, because they share launches and a port.
starting=("$here"/tests/test_{ranks_*,package,compare}.py)
others="$(mktemp)"
trap 'rm -f "$others"' EXIT
"${pytest[@]}" "${tests[@]}" "${starting[@]/#/--ignore=}" >"$others" 2>&1 &
status=0
"${pytest[@]}" "${starting[@]}" || status=$?
wait $! || status=$?
cat "$others"
exit "$status"
