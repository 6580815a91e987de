#!/usr/bin/env bash
# Every test there is, from an empty checkout: installs what is missing, builds, tests.
#
#   bash tests/run.sh [--all | --thorough | --gpu REPORT.md [--stage NAME]… [--gpu-build DIR]]
#
# The release suite, which has every test that needs neither nvcc nor a GPU, the format of the sources, and clang-tidy.
# --all: also the bits of aarch64, under qemu, what has intrinsics compiled for every level of x86-64, headers without precompiled
# ones before them, what nvcc compiles where it is installed, and the parts of the suite that another compiler may see another
# way: numbers and vectors by clang++, memory under AddressSanitizer with UndefinedBehaviorSanitizer, threads under
# ThreadSanitizer. And the site of the documentation, with its reference and its links.
# --thorough: all of the suite by these three too, which takes much longer.
# --gpu: the benchmarks and tests on the GPU at hand, and a report of them. It needs the CUDA Toolkit and CMake, and installs
# nothing: without doctest, MPI, PyTorch or compute-sanitizer only their part is skipped. No GPU is a failure. --stage, once or
# more: only this stage, with the build that it needs. --gpu-build, or SLAMB_GPU_BUILD: DIR/bin has the programs, nothing is
# built. No program runs longer than SLAMB_GPU_SECONDS (180).
# Where CI=true, as continuous-integration machines have it, a warning in this project's own programs is an error.
# The last line is `N passed, M failed`, with `, K skipped` where something was; the exit status is 1 if M is not 0.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

refuse() {
  echo "tests/run.sh: $1" >&2
  exit 2
}

all=false thorough=false gpu_report='' stages=()
while (($# > 0)); do
  case "$1" in
    --all) all=true ;;
    --thorough) thorough=true ;;
    --gpu | --gpu-build | --stage)
      [[ -n "${2:-}" ]] || refuse "$1 needs a value"
      case "$1" in
        --gpu) gpu_report="$2" ;;
        --gpu-build) SLAMB_GPU_BUILD="$2" ;;
        --stage) stages+=("$2") ;;
      esac
      shift
      ;;
    -h | --help) sed -n '2,17s/^# \{0,1\}//p' tests/run.sh; exit 0 ;;
    *) refuse "unknown option '$1'; expected --all, --thorough or --gpu REPORT.md" ;;
  esac
  shift
done
if { $all && $thorough; } || { { $all || $thorough; } && [[ -n "$gpu_report" ]]; }; then
  refuse "--all, --thorough and --gpu exclude each other"
fi
if [[ -n "$gpu_report" ]]; then
  # shellcheck source=tests/device/gpu.sh
  source tests/device/gpu.sh
  choose_stages ${stages[@]+"${stages[@]}"}
elif ((${#stages[@]} > 0)); then
  refuse "--stage goes with --gpu REPORT.md"
fi

passed=0 failed=0 skipped=0
jobs="$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"
log="$(mktemp)"

# Whatever ends the script, also a signal in the middle of a stage, the last line says how it stands.
finish() {
  if [[ -n "$gpu_report" ]]; then close_gpu_report; fi
  local line="$passed passed, $failed failed"
  ((skipped > 0)) && line+=", $skipped skipped"
  rm -f "$log"
  echo "$line"
  exit $((failed == 0 && passed > 0 ? 0 : 1))
}

# What runs now, in the background, for bash sees to a signal only when nothing runs in front of it.
child=
# wait_for_child: its exit status.
wait_for_child() {
  local status=0
  wait "$child" || status=$?
  child=
  return "$status"
}
# signal_child NAME: to the child and, where it has a group of its own, to all that it has started.
signal_child() { kill -s "$1" -- "-$child" 2>/dev/null || kill -s "$1" "$child" 2>/dev/null; }

interrupted() {
  trap '' INT TERM HUP
  if [[ -n "$child" ]] && signal_child TERM; then
    local tries
    for tries in 1 2 3 4 5 6 7 8 9 10; do
      signal_child 0 || break
      sleep 0.1
    done
    signal_child KILL
    wait "$child" 2>/dev/null
  fi
  failed=$((failed + 1))
  echo "interrupted"
  finish
}
trap interrupted INT TERM HUP

# run COMMAND…: runs it, which may be a function that is exported, with its output in the log.
own_group=()
command -v setsid >/dev/null && own_group=(setsid)
run() {
  ${own_group[@]+"${own_group[@]}"} bash -c '"$@"' run "$@" >"$log" 2>&1 </dev/null &
  child=$!
  wait_for_child
}

# report NAME STARTED TEXT: the line of one stage.
report() { printf '== %-28s %5d s  %s\n' "$1" "$((SECONDS - $2))" "$3"; }

# check NAME COMMAND…: a stage that counts as one test; its output is shown if it fails.
check() {
  local name="$1" started=$SECONDS
  shift
  if run "$@"; then
    passed=$((passed + 1))
    report "$name" "$started" passed
    return 0
  fi
  failed=$((failed + 1))
  cat "$log"
  report "$name" "$started" FAILED
  return 1
}

# A newer compiler's new warning must stop no one but those who mend it.
configure_and_build() {
  local strict=OFF options=()
  [[ "${CI:-}" == true ]] && strict=ON
  [[ "$1" == release ]] && options=("-DSLAMB_LEVEL_TESTS=$all_there_is" "-DSLAMB_HEADERS_ALONE=$all_there_is")
  cmake --preset "$@" "-DSLAMB_WARNINGS_AS_ERRORS=$strict" ${options[@]+"${options[@]}"} &&
    cmake --build --preset "$1" --parallel "$jobs"
}

# What cmake is told beside the preset, for a part of the suite.
part_of_clang=(
  -DSLAMB_COMPILE_TESTS=OFF
  -DSLAMB_INSTANCES_EMULATED=OFF  # which no test of this part has
  "-DSLAMB_TESTS_ONLY=backend/cuda/(codes|pass_kernel)|backend/host/(codes|simd|simd_packing|simd_words|uniform)|communicator/cuda/.*|compressor/.*|core/(bfloat16|random)|optimizer/(lamb|one_bit|slamb|zero_one_adam)|properties/replay|trust_ratio/.*"
)
part_of_asan=(
  -DSLAMB_BUILD_EXAMPLES=OFF
  -DSLAMB_INSTANCES_OF_COMBINATIONS=OFF
  -DSLAMB_INSTANCES_EMULATED=OFF
  # Without checks of null pointers, which crash anyway, and of alignment: a third of the time of compiling.
  "-DCMAKE_CXX_FLAGS=-fsanitize=address,undefined -fno-sanitize=null,alignment -fno-sanitize-recover=all -fno-omit-frame-pointer"
  "-DSLAMB_TESTS_ONLY=backend/cuda/(codes|pass_kernel)|backend/host/.*|checkpoint|communicator/((check|counting|hierarchical|thread)_)?communicator|compressor/(quantizer|quantizer_values|random_k|top_k)|error_feedback/.*|optimizer/(lamb|slamb|zero_one_adam)|pass/.*|state/.*|support/tests/trace"
)
part_of_tsan=(
  -DSLAMB_BUILD_EXAMPLES=OFF
  -DSLAMB_INSTANCES_OF_COMBINATIONS=OFF
  "-DSLAMB_TESTS_ONLY=backend/host/thread_pool|communicator/((check|hierarchical|thread)_)?communicator|communicator/hierarchical_communicator_lamb|core/statistics|examples/sockets/.*|faults/(calls|one_bit_training|training)|properties/(allocation|calling_threads|determinism|steps_in_parts)"
)

# suite PRESET [PART [WRAPPER…]]: builds a preset, unless all is asked for only the part by this name, and adds up the cases of
# its tests.
suite() {
  local preset="$1" started=$SECONDS part=()
  if (($# > 1)) && ! $thorough; then
    local -n named="$2"
    part=("${named[@]}")
  fi
  local wrapper=("${@:3}")
  if ! run ${wrapper[@]+"${wrapper[@]}"} bash -c 'configure_and_build "$@"' build "$preset" ${part[@]+"${part[@]}"}; then
    cat "$log"
    failed=$((failed + 1))
    report "$preset: build" "$started" "FAILED (its tests did not run)"
    return 1
  fi
  report "$preset: build" "$started" done

  started=$SECONDS
  local status=0
  # Tests of lost ranks wait for most of their time.
  run ${wrapper[@]+"${wrapper[@]}"} ctest --preset "$preset" --parallel "$((2 * jobs))" || status=$?
  add_up "$preset" "$started" "$status"
}

# add_up PRESET STARTED STATUS: counts the tests of a run of ctest, of which the log has the output.
add_up() {
  local preset="$1" started="$2" status="$3"
  # ctest's own summary: "97% tests passed, 3 tests failed out of 120", then a list that names each one left out. The total
  # counts the skipped tests and not the disabled ones.
  local total fail skip disabled
  read -r fail total < <(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests failed out of \([0-9]*\)$/\1 \2/p' "$log") || true
  skip="$(grep -cE '^[[:space:]]+[0-9]+ - .* \(Skipped\)$' "$log")"
  disabled="$(grep -cE '^[[:space:]]+[0-9]+ - .* \(Disabled\)$' "$log")"
  if [[ -z "${total:-}" ]] || { ((status != 0)) && ((fail == 0)); }; then
    cat "$log"
    failed=$((failed + 1))
    report "$preset: tests" "$started" "FAILED (ctest exited with $status)"
    return 1
  fi
  local pass=$((total - fail - skip))
  skip=$((skip + disabled))
  passed=$((passed + pass)) failed=$((failed + fail)) skipped=$((skipped + skip))
  if ((fail > 0)); then
    cat "$log"
  elif ((skip > 0)); then
    grep -E '^[[:space:]]+[0-9]+ - .* \((Skipped|Disabled)\)$' "$log"
  fi
  report "$preset: tests" "$started" "$pass passed, $fail failed, $skip skipped"
  ((fail == 0))
}

# judge NAME TOOL COMMAND…: a check by an LLVM tool. Layout and lints change with the version, and the sources follow 14: the
# verdict of another version is no verdict (skipped, and said so); a tool that is missing is a failure.
judge() {
  local name="$1" tool="$2" found
  shift 2
  if ! command -v "$tool" >/dev/null; then
    failed=$((failed + 1))
    report "$name" "$SECONDS" "FAILED: $tool is missing (bash cmake/bootstrap.sh test)"
    return 1
  fi
  found="$("$tool" --version | sed -n 's/.*version \([0-9]*\)\..*/\1/p' | head -n 1)"
  if [[ "$found" != 14 ]]; then
    skipped=$((skipped + 1))
    report "$name" "$SECONDS" "skipped: $tool is version $found, the sources follow 14"
    return 0
  fi
  check "$name" "$@"
}
# tool NAME: NAME-14 where both it and another version are installed.
tool() { command -v "$1-14" >/dev/null && echo "$1-14" || echo "$1"; }
format_check() {
  find include tests bench examples \( -name "*.hpp" -o -name "*.cpp" -o -name "*.cuh" -o -name "*.cu" \) -print0 |
    xargs -0 "$(tool clang-format)" --dry-run -Werror
}
tidy_check() {
  printf '%s\0' tests/compile/consumer_*/main.cpp |
    xargs -0 -n 1 -P "$jobs" sh -c 'exec "$0" --quiet "$1" -- -std=c++20 -Iinclude' "$(tool clang-tidy)"
}

# The CUDA Toolkit's compiler, wherever it is; empty if nowhere.
nvcc="$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc || true)"
cuda_suite() {
  if [[ -z "$nvcc" ]]; then
    skipped=$((skipped + 1))
    report cuda "$SECONDS" "skipped: no nvcc on PATH or in /usr/local/cuda/bin"
    return 0
  fi
  CUDACXX="${CUDACXX:-$nvcc}" suite cuda
}

all_there_is=OFF
if $all || $thorough; then all_there_is=ON; fi
export jobs all_there_is
export -f configure_and_build format_check tidy_check tool

if [[ -n "$gpu_report" ]]; then
  test_gpu
  finish
fi

started=$SECONDS
# Not by `run`: sudo may ask for a password at the terminal.
groups=(build train test)
if $all || $thorough; then groups+=(cross docs); fi
bash cmake/bootstrap.sh "${groups[@]}" &
child=$!
if ! wait_for_child; then
  failed=1
  report bootstrap "$started" "FAILED (nothing was run)"
  finish
fi
report bootstrap "$started" done

suite release
judge "format" "$(tool clang-format)" format_check
judge "clang-tidy" "$(tool clang-tidy)" tidy_check
if $all || $thorough; then
  check docs bash docs/build.sh --check-tools
  suite clang part_of_clang
  cuda_suite
  suite asan part_of_asan
  # The sanitizer's shadow memory has a fixed place, which a kernel that spreads addresses widely may hand out: keep it
  # from doing so where this is allowed.
  if setarch "$(uname -m)" -R true 2>/dev/null; then
    suite tsan part_of_tsan setarch "$(uname -m)" -R
  else
    suite tsan part_of_tsan
  fi
fi
finish
