#!/usr/bin/env bash
# The main job, from an empty checkout: installs what is missing, builds slamb_train, runs it.
#
#   bash examples/run.sh [slamb_train's options…]        e.g. bash examples/run.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
caller="$OLDPWD"

bash cmake/bootstrap.sh build train
started=$SECONDS
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
if ! { cmake --preset examples && cmake --build --preset examples --target slamb_train; } >"$log" 2>&1; then
  cat "$log" >&2
  echo "examples/run.sh: the build failed" >&2
  exit 1
fi
rm -f "$log"
program="$PWD/build/examples/bin/slamb_train"
echo "built $program in $((SECONDS - started)) s"

# File names among the options are the caller's.
cd "$caller"
exec "$program" "$@"
