#!/usr/bin/env bash
# All tests, from an empty checkout: installs what is missing, builds, tests.
#
#   bash tests/run.sh [--all | --thorough | --clients | --gpu REPORT.md [--stage NAME]… [--gpu-build DIR]]
#
# What proves the library on this machine: its tests, all recorded runs, and its communicators, those of MPI too.
# --all: also what proves it to others: the communicators of GPUs, over stand-ins for CUDA and NCCL; slamb_replay, the examples and the
# benchmarks; each header alone; programs that must not compile; projects that use it; the programs and links of the documentation, and
# its site; format and lints; other instruction sets, with aarch64 under qemu; sources with intrinsics, compiled for every level of
# x86-64; the sources for nvcc, where it is installed; the Python package and C++ programs, with the system's PyTorch; and the parts that may
# differ with another compiler: numbers and vectors by clang++, memory under AddressSanitizer with UndefinedBehaviorSanitizer, threads
# under ThreadSanitizer.
# --thorough: all of the suite by these three too, and headers without precompiled ones before them, which takes much longer.
# --clients: only the Python packages under what they are used with: the newest torch, transformers, accelerate, lightning, deepspeed and
# torchtitan, and the newest jax, from PyPI, 6 GB. It is run when asked: no other mode includes it.
# --gpu: the benchmarks and tests on this machine's GPU, and a report of them. Needs the CUDA Toolkit and CMake, and installs
# nothing: without doctest, MPI, PyTorch or compute-sanitizer only their parts are skipped. No GPU is a failure. --stage, once
# or more: only these stages, with the builds that they need. --gpu-build, or SLAMB_GPU_BUILD: the programs are in DIR/bin;
# nothing is built. No program runs longer than SLAMB_GPU_SECONDS (180).
# If CI=true, as continuous integration sets it, a warning in this project's own programs is an error, benchmarks have -Og, and nvcc
# compiles less: host code with -Og, and what slamb_bench_gpu does not have for one architecture.
# The last line is `N passed, M failed`, with `, K skipped` if tests were skipped; the exit status is 1 if M is not 0.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

refuse() {
  echo "tests/run.sh: $1" >&2
  exit 2
}

all=false thorough=false clients=false gpu_report='' stages=()
while (($# > 0)); do
  case "$1" in
    --all) all=true ;;
    --thorough) thorough=true ;;
    --clients) clients=true ;;
    --gpu | --gpu-build | --stage)
      [[ -n "${2:-}" ]] || refuse "$1 needs a value"
      case "$1" in
        --gpu) gpu_report="$2" ;;
        --gpu-build) SLAMB_GPU_BUILD="$2" ;;
        --stage) stages+=("$2") ;;
      esac
      shift
      ;;
    -h | --help) sed -n '2,22s/^# \{0,1\}//p' tests/run.sh; exit 0 ;;
    *) refuse "unknown option '$1'; expected --all, --thorough, --clients or --gpu REPORT.md" ;;
  esac
  shift
done
modes=0
for mode in "$all" "$thorough" "$clients" "$([[ -n "$gpu_report" ]] && echo true)"; do
  if [[ "$mode" == true ]]; then modes=$((modes + 1)); fi
done
if ((modes > 1)); then refuse "--all, --thorough, --clients and --gpu exclude each other"; fi
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

# However the script ends, even by a signal in the middle of a stage, the last line has the counts.
finish() {
  if [[ -n "$gpu_report" ]]; then close_gpu_report; fi
  local line="$passed passed, $failed failed"
  ((skipped > 0)) && line+=", $skipped skipped"
  rm -f "$log"
  echo "$line"
  exit $((failed == 0 && passed > 0 ? 0 : 1))
}

# The running child, in the background, because bash handles a signal only when no foreground command runs.
child=
# wait_for_child: returns its exit status.
wait_for_child() {
  local status=0
  wait "$child" || status=$?
  child=
  return "$status"
}
# signal_child NAME: sends the signal to the child and, if it has its own process group, to all its descendants.
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

# run COMMAND…: runs it with its output in the log. It may be an exported function.
own_group=()
command -v setsid >/dev/null && own_group=(setsid)
run() {
  ${own_group[@]+"${own_group[@]}"} bash -c '"$@"' run "$@" >"$log" 2>&1 </dev/null &
  child=$!
  wait_for_child
}

# report NAME STARTED TEXT: prints the line of one stage.
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

# A new warning of a newer compiler must be an error only for those who can fix it.
configure_and_build() {
  local strict=OFF options=()  # who measures nothing may also compile benchmarks quickly
  [[ "${CI:-}" == true ]] && strict=ON
  if [[ "$1" == release ]]; then
    options=("-DSLAMB_BUILD_EXAMPLES=$all_there_is" "-DSLAMB_BUILD_BENCHMARKS=$all_there_is" "-DSLAMB_COMPILE_TESTS=$all_there_is"
             "-DSLAMB_LEVEL_TESTS=$all_there_is" "-DSLAMB_HEADERS_ALONE=$thoroughly" "-DSLAMB_QUICK_BENCHMARKS=$strict"
             "-DSLAMB_TORCH=$all_there_is")
    if [[ "$all_there_is" == ON ]]; then
      options+=("-DSLAMB_TESTS_LEFT_OUT=")
    else
      options+=("-DSLAMB_TESTS_LEFT_OUT=distributed/(mpi/devices|nccl|processes)/.*|isa/.*|replay/main")
    fi
  fi
  cmake --preset "$@" "-DSLAMB_WARNINGS_AS_ERRORS=$strict" ${options[@]+"${options[@]}"} &&
    cmake --build --preset "$1" --parallel "$jobs"
}

# The options of cmake besides the preset, for a part of the suite.
part_of_clang=(
  -DSLAMB_BUILD_EXAMPLES=OFF
  -DSLAMB_COMPILE_TESTS=OFF
  -DSLAMB_INSTANCES_ON_OTHER_BACKENDS=OFF  # no test of this part has them
  "-DSLAMB_TESTS_ONLY=backend/cuda/(codes|team)|kernel/(choose|run_pass|segments)|backend/host/(codes|simd|simd_packing|simd_words|uniform)|communicator/cuda/.*|compressor/.*|core/(bfloat16|random)|isa/.*|optimizer/(lamb|one_bit|slamb|zero_one_adam)|properties/replay|trust_ratio/.*"
)
part_of_asan=(
  -DSLAMB_BUILD_EXAMPLES=OFF
  -DSLAMB_INSTANCES_ON_OTHER_BACKENDS=OFF
  # Without checks of null pointers, which crash anyway, and of alignment: saves a third of the compile time.
  "-DCMAKE_CXX_FLAGS=-fsanitize=address,undefined -fno-sanitize=null,alignment -fno-sanitize-recover=all -fno-omit-frame-pointer"
  "-DSLAMB_TESTS_ONLY=backend/cuda/(codes|team)|kernel/(choose|run_pass|segments)|backend/host/.*|checkpoint|communicator/((counting|hierarchical|sharded|thread)_)?communicator|compressor/(quantizer|quantizer_values|random_k|top_k)|distributed/nccl/.*|error_feedback/.*|optimizer/(lamb|slamb)|parameter_sync/partition|pass/.*|properties/shards_checkpoint|replay/main|state/.*|support/tests/trace|testing/.*"
)
part_of_tsan=(
  -DSLAMB_BUILD_EXAMPLES=OFF
  -DSLAMB_INSTANCES_ON_OTHER_BACKENDS=OFF
  "-DSLAMB_TESTS_ONLY=backend/host/thread_pool|communicator/((hierarchical|sharded|thread)_)?communicator|communicator/hierarchical_communicator_lamb|core/statistics|distributed/nccl/.*|examples/sockets/.*|faults/(calls|failed_calls|training)|parameter_sync/partition|properties/(allocation|calling_threads|determinism|steps_in_parts)|testing/.*"
)

# Continuous integration has no GPU to run them. It compiles the recipes that slamb_bench_gpu times for two architectures instead of
# three, those that only tests have for the first, and host code with -Og.
part_of_cuda=()
if [[ "${CI:-}" == true ]]; then
  part_of_cuda=("-DCMAKE_CUDA_ARCHITECTURES=80-real;90-real" -DSLAMB_SHORT_DEVICE_TESTS=ON)
fi

# suite PRESET [PART [WRAPPER…]]: builds a preset, or only the part with this name unless all is requested, and adds up the cases
# of its tests.
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
  # Tests of lost ranks mostly wait.
  run ${wrapper[@]+"${wrapper[@]}"} ctest --preset "$preset" --parallel "$((2 * jobs))" || status=$?
  add_up "$preset" "$started" "$status"
}

# add_up PRESET STARTED STATUS: counts the tests of a run of ctest, from its output in the log.
add_up() {
  local preset="$1" started="$2" status="$3"
  # ctest's own summary: "97% tests passed, 3 tests failed out of 120", then a list with the name of each test that did not run.
  # The total includes skipped tests, but not disabled ones.
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

# judge NAME TOOL COMMAND…: a check by an LLVM tool. Layout and lints change with the version, and the sources follow version 14.
# With another version the check is skipped, with a message. A missing tool is a failure.
judge() {
  local name="$1" tool="$2" found
  shift 2
  if ! command -v "$tool" >/dev/null; then
    failed=$((failed + 1))
    report "$name" "$SECONDS" "FAILED: $tool is missing (bash cmake/bootstrap.sh lint)"
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
# tool NAME: NAME-14 if it is installed, else NAME.
tool() { command -v "$1-14" >/dev/null && echo "$1-14" || echo "$1"; }
format_check() {
  find include tests bench examples \( -name "*.hpp" -o -name "*.ipp" -o -name "*.cpp" -o -name "*.cuh" -o -name "*.cu" \) -print0 |
    xargs -0 "$(tool clang-format)" --dry-run -Werror
}
tidy_check() {
  printf '%s\0' tests/compile/consumer_{strict_warnings,trust_ratio}/main.cpp |
    xargs -0 -n 1 -P "$jobs" sh -c 'exec "$0" --quiet "$1" -- -std=c++20 -Iinclude' "$(tool clang-tidy)"
}

# The CUDA Toolkit's compiler; empty if there is none.
nvcc="$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc || true)"
cuda_suite() {
  if [[ -z "$nvcc" ]]; then
    skipped=$((skipped + 1))
    report cuda "$SECONDS" "skipped: no nvcc on PATH or in /usr/local/cuda/bin"
    return 0
  fi
  CUDACXX="${CUDACXX:-$nvcc}" suite cuda part_of_cuda
}

# python_suite NAME FOLDER [ARGUMENT…]: the tests of a Python package, with arguments of their script, and their number.
python_suite() {
  local name="$1" started=$SECONDS status=0 counts passes skips
  run bash "examples/$2/tests/run.sh" "${@:3}" || status=$?
  counts="$(grep -E '^[0-9].* in [0-9.]+s' "$log")"  # a line of each process of pytest
  passes="$(sed -nE 's/.*\b([0-9]+) passed.*/\1/p' <<<"$counts" | awk '{n += $1} END {if (NR > 0) print n}')"
  skips="$(sed -nE 's/.*\b([0-9]+) skipped.*/\1/p' <<<"$counts" | awk '{n += $1} END {print n + 0}')"
  counts="${counts//$'\n'/; }"
  if ((status != 0)) || [[ -z "$passes" ]]; then
    failed=$((failed + 1))
    cat "$log"
    report "$name" "$started" "FAILED (${counts:-no tests ran})"
    return 1
  fi
  passed=$((passed + passes)) skipped=$((skipped + ${skips:-0}))
  report "$name" "$started" "$counts"
}

all_there_is=OFF thoroughly=OFF
if $all || $thorough; then all_there_is=ON; fi
if $thorough; then thoroughly=ON; fi
export jobs all_there_is thoroughly
export -f configure_and_build format_check tidy_check tool

if [[ -n "$gpu_report" ]]; then
  test_gpu
  finish
fi

started=$SECONDS
# Not by `run`, because sudo may ask for a password at the terminal.
groups=(build test)
if $all || $thorough; then groups+=(train bench lint cross docs pytorch); fi
if $clients; then groups=(build pytorch); fi
bash cmake/bootstrap.sh "${groups[@]}" &
child=$!
if ! wait_for_child; then
  failed=1
  report bootstrap "$started" "FAILED (nothing was run)"
  finish
fi
report bootstrap "$started" done

if $clients; then
  python_suite clients pytorch --clients
  python_suite jax jax
  finish
fi
suite release
if $all || $thorough; then
  judge "format" "$(tool clang-format)" format_check
  judge "clang-tidy" "$(tool clang-tidy)" tidy_check
  check docs bash docs/build.sh --check-tools
  python_suite pytorch pytorch
  suite clang part_of_clang
  cuda_suite
  suite asan part_of_asan
  # The sanitizer's shadow memory has a fixed address, which collides with a kernel that randomizes addresses widely: turn this
  # off where it is allowed.
  if setarch "$(uname -m)" -R true 2>/dev/null; then
    suite tsan part_of_tsan setarch "$(uname -m)" -R
  else
    suite tsan part_of_tsan
  fi
fi
finish
