#!/usr/bin/env bash
# Shows that the bounds of ranks/trainings.py reject broken optimizers: builds the package with a mistake, and runs the trainings.
#
#   bash examples/pytorch/tests/broken.sh
#
# Mistakes: an update of the wrong sign; compression errors that ranks do not keep; one element of 65,535 is exchanged in place of
# one of ten. Each must fail exactly the trainings that it concerns. Takes ten minutes on two cores. Uses the environment of
# tests/run.sh: build/pytorch/system.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)"
python="$root/build/pytorch/system/bin/python"
[[ -x "$python" ]] || { echo "broken.sh: there is no $python; run: bash examples/pytorch/tests/run.sh" >&2; exit 2; }
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# break_and_test NAME FILE FROM TO EXPECTED: replaces a line of a header, and expects these trainings to fail.
break_and_test() {
  local copy="$work/$1" failed
  mkdir "$copy"
  cp -r "$root"/{CMakeLists.txt,cmake,include,examples,LICENSE,README.md} "$copy/"
  "$python" - "$copy/include/slamb/$2" "$3" "$4" <<'END'
import sys
file, old, new = sys.argv[1:]
text = open(file, encoding="utf-8").read()
if text.count(old) != 1:
    sys.exit(f"broken.sh: {file} has '{old}' {text.count(old)} times, expected once")
open(file, "w", encoding="utf-8").write(text.replace(old, new))
END
  "$python" -m pip --disable-pip-version-check install --quiet --no-deps --target "$copy/package" "$copy/examples/pytorch" \
    "--config-settings=build-dir=$copy/build"
  (cd "$work" && PYTHONPATH="$copy/package" OMP_NUM_THREADS=1 "$python" -m pytest -q -p no:cacheprovider -k final_loss \
    "$root/examples/pytorch/tests/test_ranks_trainings.py") >"$copy/log" 2>&1 || true
  failed="$(sed -nE 's/^_+ .*final_loss_is_below_its_bound\[(.*)\]-2\] _+$/\1/p' "$copy/log" | LC_ALL=C sort | paste -sd, -)"
  if [[ "$failed" != "$5" ]]; then
    cat "$copy/log"
    echo "broken.sh: $1: failed: '$failed', expected: '$5'" >&2
    exit 1
  fi
  echo "$1: failed, as expected: $failed"
  sed -nE 's/^rank 0: .*AssertionError: (.*)/  \1/p' "$copy/log"
}

break_and_test "wrong sign" optimizer/detail/adam_passes.hpp \
  "e.parameter = e.parameter - Real(tensor.rate) * scaled;" "e.parameter = e.parameter + Real(tensor.rate) * scaled;" \
  "images-lamb,images-one_bit_lamb,images-slamb+int8,lm-lamb,lm-one_bit_lamb,lm-slamb+int8"
break_and_test "no worker errors" detail/kernel/two_phase.hpp \
  "error.store(decoded.compression_error_or_announcement(x, here), here);" "error.store(Real(0.0F), here);" \
  "images-one_bit_lamb,lm-one_bit_lamb"
break_and_test "one element of 65535" compressor/random_k.hpp \
  "return static_cast<std::uint32_t>(std::lround(1.0 / k));" "return 65535U;" \
  "images-slamb+int8,lm-slamb+int8"
