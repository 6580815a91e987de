#!/usr/bin/env bash
# The tests of slamb.jax: installs it into a virtual environment of its own, and runs them there.
#
#   bash examples/jax/tests/run.sh [--oldest] [argument of pytest]…
#
# With the newest JAX on PyPI that this Python can have, or, with --oldest, the oldest that the package takes. The environment is
# build/jax/newest or build/jax/oldest, and is used again by later runs. PYTHON names the interpreter: 3.11 or newer. Needs a C++20
# compiler; pip fetches everything else. The last line of pytest has the number of tests. If CI=true, the package is installed from
# its source archive.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

kind=newest
case "${1:-}" in
  --oldest) kind=oldest; shift ;;
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac

python=
for candidate in ${PYTHON:+"$PYTHON"} /usr/bin/python3 python3; do
  command -v "$candidate" >/dev/null || continue
  if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python="$candidate"
    break
  fi
done
if [[ -z "$python" ]]; then
  echo "examples/jax/tests/run.sh: no Python 3.11 or newer with venv was found; on Debian: apt-get install python3-venv" >&2
  exit 1
fi

build="$here/../../build/jax"
environment="$build/$kind"
"$python" -m venv "$environment"
pip() { "$environment/bin/python" -m pip --disable-pip-version-check install --quiet "$@"; }

# The library's own optimizers, with which trainings are compared. Their bits do not depend on the level of optimization.
reference="$build/reference"
"${CXX:-g++}" -std=c++20 -O1 -I"$here/../../include" -pthread "$here/tests/reference.cpp" -o "$reference" &
compiler=$!

if [[ $kind == oldest ]]; then
  oldest="$(sed -nE 's/^dependencies = \["jax>=(.*)"\]$/\1/p' "$here/pyproject.toml")"
  pip "jax==$oldest" numpy optax pytest pytest-timeout
else
  pip --upgrade jax numpy optax pytest pytest-timeout
fi
# The archive shows that it has all that its build needs. From the checkout, pip compiles only what has changed.
if [[ "${CI:-}" == true ]]; then
  archive="$(mktemp -d)"
  pip build
  "$environment/bin/python" -m build --sdist --outdir "$archive" "$here"
  pip --force-reinstall --no-deps "$archive"/slamb_jax-*.tar.gz
  rm -r "$archive"
else
  pip --force-reinstall --no-deps "$here"
fi
wait "$compiler"

# Anywhere but in the folder of a package named slamb.
cd "$environment"
"$environment/bin/python" -c 'import jax, slamb.jax; print("slamb.jax with JAX", jax.__version__)'
export SLAMB_JAX_REFERENCE="$reference"
exec "$environment/bin/python" -m pytest -q -p no:cacheprovider --timeout 300 "$here/tests" "$@"
