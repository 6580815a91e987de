#!/usr/bin/env bash
# rehearse.sh [GROUP]…: runs tests/run.sh --gpu without a GPU, with stand-ins for all that it starts (stand_in.sh), and checks the
# report, the exit status and the last line. Groups: success, failures, hangs, signals, missing, options, control; launcher, for
# nccl_ranks.sh. All if none is named.
#
# Prints failed checks, and at the end how many runs and checks there were. Exit: 0; 1 if a check failed.
# shellcheck disable=SC2034  # variables of a run are exported by name
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
sources="$(cd "$here/../../.." && pwd)"
ROOT="$(mktemp -d)"
trap 'rm -rf "$ROOT"' EXIT
runs=0 checks=0 wrong=0

# A machine with only the tools that the script may use, and the stand-ins; and its own copy of the tree.
tools=(basename bash cat cp date dirname env find grep head ln mkdir mktemp mv nproc rm sed setsid sleep sort tail tee timeout tr true)
stand_ins=(cmake compute-sanitizer mpirun ninja nvcc nvidia-smi python3)
mapfile -t tools < <(type -P "${tools[@]}")
STAND_IN="$ROOT/stand_in.sh" REAL_MV="$(type -P mv)"
cp "$here/stand_in.sh" "$STAND_IN"
chmod +x "$STAND_IN"
mkdir -p "$ROOT/path" "$ROOT/tests/device" "$ROOT/cmake" "$ROOT/bench/gpu"
cp "$sources/tests/run.sh" "$ROOT/tests/"
cp "$sources/cmake/slamb_mpirun.cmake" "$ROOT/cmake/"
: >"$ROOT/bench/gpu/torch_adamw.py"
: >"$ROOT/tests/device/training.cpp"
echo 'TEST_CASE("device: a case") {}' | tee "$ROOT/tests/device/edges.cpp" >"$ROOT/tests/device/replay.cu"

all_rows=("build bench" bench torch "pytorch: costs" "pytorch: tests" "build tests" "tests: edges" "tests: replay"
  "tests: processes" memcheck racecheck synccheck initcheck "build nccl" "nccl: 2 ranks" "nccl: 4 ranks" "nccl: 4 ranks, models of 2 shards" "nccl: torchrun"
  "build examples" "examples: cuda" "examples: nccl, 1 rank" "examples: nccl, 2 ranks")

# reset: the defaults of a run: everything is installed, and nothing fails.
reset() {
  STAGES_THAT_FAIL='' STAGES_THAT_HANG='' STAGES_THAT_ARE_EMPTY='' KILLED_BEFORE_RENAMING='' GPU=yes SLAMB_GPU_SECONDS=60
  PACKAGES="|sound|doctest|mpi|torch|slamb|nccl|two_gpus|"
  local name
  ln -sf "${tools[@]}" "$ROOT/path"
  for name in "${stand_ins[@]}"; do ln -sf "$STAND_IN" "$ROOT/path/$name"; done
  cp "$here/../gpu.sh" "$ROOT/tests/device/"
  touch "$ROOT/bench/gpu/torch_adamw.py"
  clear_run
}
clear_run() {
  rm -rf "$ROOT/build" "$ROOT/snapshots" "$ROOT/report.md" "$ROOT/report.md.part" "$ROOT/hanging" "$ROOT/cmake_calls"
  mkdir "$ROOT/build" "$ROOT/snapshots"
}

# start [OPTION…]: runs tests/run.sh --gpu with these in the background, as $script. Job control lets it receive SIGINT.
start() {
  runs=$((runs + 1))
  set -m
  env -i PATH="$ROOT/path" ROOT="$ROOT" STAND_IN="$STAND_IN" REAL_MV="$REAL_MV" PACKAGES="$PACKAGES" GPU="$GPU" \
    STAGES_THAT_FAIL="$STAGES_THAT_FAIL" STAGES_THAT_HANG="$STAGES_THAT_HANG" SLAMB_GPU_SECONDS="$SLAMB_GPU_SECONDS" \
    STAGES_THAT_ARE_EMPTY="$STAGES_THAT_ARE_EMPTY" KILLED_BEFORE_RENAMING="$KILLED_BEFORE_RENAMING" \
    bash "$ROOT/tests/run.sh" --gpu report.md "$@" >"$ROOT/output" 2>&1 </dev/null &
  script=$!
  set +m
}
finished() {
  status=0
  wait "$script" 2>/dev/null || status=$?
}
run() {
  start "$@"
  finished
}
# run_until_killed SIGNAL STAGE: sends the signal to the script while the stage runs.
run_until_killed() {
  STAGES_THAT_HANG="|$2|"
  start
  local tries=0
  until [[ -s "$ROOT/hanging" ]] || ((++tries > 1000)); do sleep 0.05; done
  kill -s "$1" "$script"
  finished
}
# all_gone: processes that hung have ended with the script. A zombie may remain if no process reaps orphans.
all_gone() {
  local pid tries
  pid="$(<"$ROOT/hanging")"
  for ((tries = 0; tries < 100; ++tries)); do
    kill -s 0 "$pid" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null || return 0
    sleep 0.05
  done
  complain "what hung still runs"
}

# Checks. On failure they complain and return 1; must and must_not count them.
complain() {
  complaint="$1"
  return 1
}
must() {
  checks=$((checks + 1))
  "$@" && return
  wrong=$((wrong + 1))
  echo "$context: $*: $complaint"
  if [[ "${shown:-}" != "$context" ]]; then cat "$ROOT/output" "$ROOT/report.md"; fi
  shown="$context"
}
must_not() {
  checks=$((checks + 1))
  "$@" || return 0
  wrong=$((wrong + 1))
  echo "$context: a check cannot fail: $*"
}

# is_whole [REPORT]: it has its begin and end, fences are closed, and rows are as wide as their tables.
is_whole() {
  local report="${1:-$ROOT/report.md}" found
  [[ -s "$report" ]] || complain "no report" || return
  found="$(LC_ALL=C awk '
    NR == 1 && $0 != "# Device tests of slamb" { print "no title" }
    /^````$/ { fenced = !fenced; next }
    fenced { next }
    /^## / { sections = sections $2 " " }
    /^\|/ { escaped = $0; gsub(/\\\|/, "", escaped); columns = gsub(/\|/, "", escaped)
            if (width && columns != width) print "line " NR " has another width than its table"
            width = columns; next }
    { width = 0 }
    END { if (fenced) print "a fence is open"
          if (sections !~ /^Stages .*Resources $/) print "sections: " sections }' "$report")"
  [[ -z "$found" ]] || complain "$found"
}
# verdicts [REPORT]: NAME, tab, VERDICT of each row, in order.
verdicts() {
  sed -n '/^## Stages/,/^## [^S]/s/^| \([^|]*\) | \(.*\) | [-0-9]* |$/\1\t\2/p' "${1:-$ROOT/report.md}"
}
# has_rows NAME…: exactly these rows, in this order.
has_rows() {
  local got expected
  got="$(verdicts | cut -f 1)" expected="$(printf '%s\n' "$@")"
  [[ "$got" == "$expected" ]] || complain "the rows are: ${got//$'\n'/; }"
}
# row NAME VERDICT [REPORT]: the row's verdict begins with VERDICT.
row() {
  local got
  got="$(verdicts "${3:-}" | sed -n "s/^$1\t//p")"
  [[ "$got" == "$2"* ]] || complain "it is '$got'"
}
# rows_but VERDICT NAME…: all other rows have this verdict.
rows_but() {
  local verdict="$1" name text
  shift
  while IFS=$'\t' read -r name text; do
    [[ " ${*/%/;} " == *" $name; "* || "$text" == "$verdict"* ]] || complain "'$name' is '$text'" || return
  done < <(verdicts)
}
# adds_up: the last line and the exit status agree with the rows and with the report.
adds_up() {
  local good bad left line
  good="$(verdicts | cut -f 2 | grep -c '^passed')"
  bad="$(verdicts | cut -f 2 | grep -c '^FAILED')"
  left="$(verdicts | cut -f 2 | grep -c '^skipped')"
  line="$good passed, $bad failed"
  grep -qx "$line, $left skipped\." "$ROOT/report.md" || complain "the report does not say: $line, $left skipped" || return
  ((left > 0)) && line+=", $left skipped"
  [[ "$(tail -n 1 "$ROOT/output")" == "$line" ]] || complain "the last line is not: $line" || return
  ((status == (bad == 0 && good > 0 ? 0 : 1))) || complain "the exit status is $status"
}
# shows TEXT: the report contains it.
shows() { grep -qF -- "$1" "$ROOT/report.md" || complain "the report lacks it"; }
# called TEXT: cmake was called with this.
called() { grep -qF -- "$1" "$ROOT/cmake_calls" 2>/dev/null || complain "cmake was not called so"; }
is_status() { ((status == $1)) || complain "the exit status is $status"; }
is_last_line() { [[ "$(tail -n 1 "$ROOT/output")" == "$1" ]] || complain "it is: $(tail -n 1 "$ROOT/output")"; }
ends_well() {
  must is_whole
  must adds_up
}

success() {
  reset
  context="all is well"
  run
  ends_well
  must has_rows "${all_rows[@]}"
  must rows_but passed
  must row "tests: edges" "passed: 2 of 2 cases"
  must row memcheck "passed: 2 of 2 cases"
  must row racecheck "passed: 1 of 1 cases"
  must row "nccl: 4 ranks" "passed: 57 ok, 0 wrong"
  must row "nccl: torchrun" "passed: 4 passed in 0.10s"
  must shows '| `lamb` | 1 |'
  must shows '| `fused` | 1 |'
  must shows '| a kernel |'
  local name before=()
  for name in "${all_rows[@]}"; do  # while each ran, those before it had been reported
    must is_whole "$ROOT/snapshots/$name.md"
    must row "$name" "not finished" "$ROOT/snapshots/$name.md"
    if ((${#before[@]} > 0)); then must row "${before[-1]}" passed "$ROOT/snapshots/$name.md"; fi
    before+=("$name")
  done
  must row bench "not run" "$ROOT/snapshots/build bench.md"
}

failures() {
  local name other reason without
  for name in "${all_rows[@]}"; do
    reset
    context="$name fails"
    STAGES_THAT_FAIL="|$name|"
    run
    ends_well
    must row "$name" "FAILED: exit status 1"
    must shows "a line of $name"
    case "$name" in
      "build bench") without=("$name" bench torch) reason="skipped: slamb_bench_gpu was not built" ;;
      "build tests")
        without=("$name" tests memcheck racecheck synccheck initcheck) reason="skipped: slamb_device_tests was not built"
        ;;
      "build nccl") without=("$name" "nccl: 2 ranks" "nccl: 4 ranks" "nccl: 4 ranks, models of 2 shards") reason="skipped: slamb_device_nccl_tests was not built" ;;
      "build examples") without=("$name" "examples: cuda") reason="skipped: example_cuda_graph was not built" ;;
      *) without=("$name") ;;
    esac
    for other in "${without[@]:1}"; do must row "$other" "$reason"; done
    must rows_but passed "${without[@]}"
  done
}

hangs() {
  reset
  context="programs that hang"
  STAGES_THAT_HANG="|bench|tests: replay|" SLAMB_GPU_SECONDS=10
  run
  ends_well
  must row bench "FAILED: stopped after 10 seconds"
  must row "tests: replay" "FAILED: stopped after 10 seconds"
  must rows_but passed bench "tests: replay"
  must all_gone

  reset
  context="programs that do nothing"
  STAGES_THAT_ARE_EMPTY="|bench|tests: edges|memcheck|nccl: 2 ranks|"
  run
  ends_well
  must row "nccl: 2 ranks" "FAILED: no counts"
  must row bench "FAILED: it printed no table"
  must row "tests: edges" "FAILED: 0 cases ran, expected one or more"
  must row memcheck "FAILED: 0 cases ran, expected 2"
  must rows_but passed bench "tests: edges" memcheck "nccl: 2 ranks"
}

signals() {
  local signal name
  for signal in TERM INT HUP; do
    reset
    context="SIG$signal while a test runs"
    run_until_killed "$signal" "tests: replay"
    ends_well
    must has_rows "${all_rows[@]:0:14}" nccl "build examples" examples
    must row "tests: replay" "FAILED: interrupted"
    must row "tests: edges" passed
    must row "tests: processes" "not run"
    must row memcheck "not run"
    must all_gone
  done
  for name in "build bench" torch memcheck; do
    reset
    context="SIGTERM in $name"
    run_until_killed TERM "$name"
    ends_well
    must row "$name" "FAILED: interrupted"
    must row examples "not run"
    must all_gone
  done

  reset
  context="SIGKILL while a test runs"
  run_until_killed KILL "tests: replay"
  kill -s KILL "$(<"$ROOT/hanging")"
  must is_status 137
  must_be_saved "tests: replay" "not finished" "tests: edges"

  reset
  context="SIGKILL before the report is renamed"
  KILLED_BEFORE_RENAMING=memcheck
  ln -sf "$STAND_IN" "$ROOT/path/mv"
  run
  must is_status 137
  must_be_saved memcheck "not run" "tests: processes"
}
# must_be_saved RUNNING VERDICT BEFORE: the saved report has all rows but the running one.
must_be_saved() {
  must is_whole
  must row "$1" "$2"
  must row "$3" passed
  must row racecheck "not run"
}

missing() {
  local tests=("build tests" tests memcheck racecheck synccheck initcheck)
  local nccl=("build nccl" "nccl: 2 ranks" "nccl: 4 ranks" "nccl: 4 ranks, models of 2 shards")

  reset
  context="no doctest"
  PACKAGES="${PACKAGES/|doctest/}"
  run
  ends_well
  must row "build tests" "skipped: doctest was not found"
  must row tests "skipped: doctest was not found"
  must row "nccl: 2 ranks" "skipped: doctest was not found"
  must rows_but passed "${tests[@]}" "${nccl[@]}"
  must is_status 0
  # gpu.sh recognizes a missing package by this message.
  context="the message about a package"
  must grep -qF "need the package \${name}, which was not found." "$sources/cmake/slamb_packages.cmake"
  must grep -qF "The device tests need python3, which was not found: " "$sources/cmake/slamb_nvcc.cmake"

  reset
  context="no python3"
  rm "$ROOT/path/python3"
  run
  ends_well
  must row torch "skipped: python3 is missing"
  must row "pytorch: costs" "skipped: python3 with pytest, torch and slamb is missing"
  must row "build tests" "skipped: python3 was not found"
  must row "nccl: torchrun" "skipped: python3 with pytest, torch and slamb is missing"
  must rows_but passed torch "pytorch: costs" "pytorch: tests" "${tests[@]}" "${nccl[@]}" "nccl: torchrun"

  reset
  context="tests that cannot be configured"
  PACKAGES="${PACKAGES/|sound/}"
  run
  ends_well
  must row "build tests" "FAILED: the device tests could not be configured"
  must shows "Something that nobody has foreseen"
  must row memcheck "skipped: the device tests could not be configured"
  must rows_but passed "${tests[@]}" "${nccl[@]}"

  reset
  context="no MPI, second GPU, ninja, timeout and nvidia-smi"
  PACKAGES="|sound|doctest|torch|slamb|nccl|"
  rm "$ROOT/path/ninja" "$ROOT/path/timeout" "$ROOT/path/nvidia-smi" "$ROOT/path/setsid"
  run
  ends_well
  must row "tests: processes" "skipped: MPI was not found"
  must row "examples: nccl, 2 ranks" "skipped: NCCL needs a GPU for each rank"
  must rows_but passed "tests: processes" "examples: nccl, 2 ranks"
  must called "-G Unix Makefiles"
  must is_status 0

  reset
  context="no PyTorch, compute-sanitizer, mpirun and NCCL"
  PACKAGES="|sound|doctest|mpi|"
  rm "$ROOT/path/compute-sanitizer" "$ROOT/path/mpirun"
  run
  ends_well
  must row torch "skipped: no PyTorch"
  must row "pytorch: tests" "skipped: python3 with pytest, torch and slamb is missing"
  must row "tests: processes" "skipped: mpirun is missing"
  for name in memcheck racecheck synccheck initcheck; do must row "$name" "skipped: no compute-sanitizer"; done
  must row "examples: cuda" passed
  must row "examples: nccl, 1 rank" "skipped: NCCL was not found"
  for name in "${nccl[@]}"; do must row "$name" "skipped: NCCL was not found"; done
  must row "tests: replay" passed
  must is_status 0
  must_not called "-G Unix Makefiles"

  reset
  context="an NCCL that refuses several ranks on one GPU"
  PACKAGES+="one_rank|"
  run
  ends_well
  must row "nccl: 2 ranks" "skipped: NCCL refuses several ranks on one GPU"
  must row "nccl: torchrun" "skipped: NCCL refuses two ranks"
  must rows_but passed "nccl: 2 ranks" "nccl: 4 ranks" "nccl: 4 ranks, models of 2 shards" "nccl: torchrun"
  must is_status 0

  reset
  context="no script for PyTorch"
  rm "$ROOT/bench/gpu/torch_adamw.py"
  run
  ends_well
  must row torch "skipped: bench/gpu/torch_adamw.py is missing"
  must rows_but passed torch

  reset
  context="no GPU, by CMake"
  GPU=unseen
  run
  ends_well
  must row "build bench" "FAILED: there is no GPU"
  must rows_but "skipped: there is no GPU" "build bench"
  must_not called "--build"

  reset
  context="no GPU, by the benchmark"
  GPU=no
  run
  ends_well
  must row bench "FAILED: there is no GPU"
  must rows_but "skipped: there is no GPU" "build bench" bench
  must_not called "--target slamb_device_tests"

  reset
  context="no GPU, by the tests"
  GPU=no
  run --stage tests
  ends_well
  must row "tests: edges" "FAILED: there is no GPU"
  must row "tests: replay" "skipped: there is no GPU"
}

options() {
  reset
  context="one stage"
  run --stage tests
  ends_well
  must has_rows "build tests" "tests: edges" "tests: replay" "tests: processes"
  must rows_but passed
  must_not called "--target slamb_bench_gpu"

  reset
  context="no GPU, by the ranks over NCCL"
  GPU=no
  run --stage nccl
  ends_well
  must has_rows "build nccl" "nccl: 2 ranks" "nccl: 4 ranks" "nccl: 4 ranks, models of 2 shards" "nccl: torchrun"
  must row "nccl: 2 ranks" "FAILED: there is no GPU"
  must rows_but "skipped: there is no GPU" "build nccl" "nccl: 2 ranks"

  reset
  context="two stages"
  run --stage memcheck --stage bench
  ends_well
  must has_rows "build bench" bench "build tests" memcheck
  must rows_but passed

  reset
  context="programs that are given"
  mkdir -p "$ROOT/given/bin"
  for name in slamb_bench_gpu slamb_device_tests; do ln -sf "$STAND_IN" "$ROOT/given/bin/$name"; done
  run --gpu-build "$ROOT/given"
  ends_well
  must row "build bench" given
  must row "build tests" given
  must row "build examples" "skipped: $ROOT/given/bin/example_cuda_graph is missing"
  must row "tests: processes" "skipped: $ROOT/given/bin/slamb_device_mpi_tests is missing"
  must row "nccl: 2 ranks" "skipped: $ROOT/given/bin/slamb_device_nccl_tests is missing"
  must rows_but passed "build nccl" "nccl: 2 ranks" "nccl: 4 ranks" "nccl: 4 ranks, models of 2 shards" "build bench" "build tests" "build examples" "tests: processes" "examples: cuda" \
    "examples: nccl, 1 rank" "examples: nccl, 2 ranks"
  must_not called "--preset"
  must is_status 0

  context="no programs are given"
  clear_run
  rm -r "$ROOT/given"
  run --gpu-build "$ROOT/given" --stage bench --stage tests
  ends_well
  must has_rows "build bench" bench "build tests" tests
  must rows_but "skipped: $ROOT/given/bin/slamb_"
  must is_status 1

  reset
  context="a report that cannot be written"
  mkdir "$ROOT/report.md.part"
  run
  must is_last_line "0 passed, 1 failed"
  must is_status 1
  must_not called "--preset"

  context="wrong options"
  for wrong_options in "--stage none" "--stage" "--all" "--clients" "--gpu /dev/null"; do
    clear_run
    # shellcheck disable=SC2086
    run $wrong_options
    must is_status 2
  done
  clear_run
  SLAMB_GPU_SECONDS=soon run
  must is_status 2

  context="the cases for compute-sanitizer"
  must cases_exist "$here/../gpu.sh"
}
# cases_exist GPU_SH: the names in its array sanitized_cases are cases of the device tests.
cases_exist() {
  local name cases
  mapfile -t cases < <(sed -n '/^sanitized_cases=(/,/^)/s/^ *"\(.*\)"$/\1/p' "$1")
  ((${#cases[@]} > 1)) || complain "there are none" || return
  for name in "${cases[@]}"; do
    grep -qF "TEST_CASE(\"$name\")" "$here"/../*.cpp || complain "no case is '$name'" || return
  done
}

# nccl_ranks.sh, whose programs are shell commands.
launcher() {
  reset
  mkdir -p "$ROOT/libraries"
  : >"$ROOT/libraries/libnccl.so.2"
  context="ranks on one GPU"
  launch 3 bash -c 'echo "$RANK of $WORLD_SIZE, device $LOCAL_RANK, host $NCCL_HOSTID, $NCCL_SOCKET_IFNAME $NCCL_NET"'
  must is_status 0
  for rank in 0 1 2; do must prints "[$rank] $rank of 3, device 0, host slamb-rank-$rank, lo Socket"; done

  context="a rank that fails, and one that never ends"
  launch 3 bash -c 'if ((RANK == 1)); then exit 4; elif ((RANK == 2)); then echo $BASHPID >"$ROOT/hanging"; exec sleep 60; fi'
  must is_status 1
  must prints "rank 1: exit status 4"
  must prints "1 ranks still run 1 seconds after the first failure, and are ended"
  must all_gone

  context="an NCCL that refuses"
  launch 2 bash -c 'echo "NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000"; exit 1'
  must is_status 77
  must prints "skipped: NCCL refuses several ranks on one GPU: Duplicate GPU detected : rank 0"

  context="a launch without a GPU"
  rm "$ROOT/path/nvidia-smi"
  launch 2 true
  must is_status 77
  must prints "skipped: no GPU"

  context="wrong launches"
  launch
  must is_status 2
  launch none true
  must is_status 2
  launch 2
  must is_status 2
  launch 2 no_such_program
  must is_status 2
  must_not prints "skipped"
}
launch() {
  runs=$((runs + 1)) status=0
  env -i PATH="$ROOT/path" ROOT="$ROOT" LD_LIBRARY_PATH="$ROOT/libraries" SLAMB_RANKS_GRACE=1 \
    bash "$here/../nccl_ranks.sh" "$@" >"$ROOT/output" 2>&1 </dev/null || status=$?
}
# prints TEXT: the output contains it.
prints() { grep -qF -- "$1" "$ROOT/output" || complain "the output lacks it"; }

# The checks above must reject broken reports and broken scripts.
control() {
  context=control
  reset
  STAGES_THAT_FAIL="|bench|"
  run
  must is_whole
  must_not rows_but passed
  must_not row bench passed
  must_not row torch "not run"
  must_not has_rows "${all_rows[@]:1}"
  must_not is_status 0
  must_not is_last_line "0 passed, 0 failed"
  must_not shows "a line of torch"
  must_not called "--target nothing"
  must_not is_whole "$ROOT/none.md"
  cp "$ROOT/report.md" "$ROOT/right.md"
  broken() {
    sed "$1" "$ROOT/right.md" >"$ROOT/report.md"
    must_not cmp -s "$ROOT/right.md" "$ROOT/report.md"
    must_not "$2"
  }
  broken '1d' is_whole
  broken '0,/^````$/{/^````$/d}' is_whole
  broken '/^## Resources/,$d' is_whole
  broken 's/^| torch |/| torch | more |/' is_whole
  broken '/^| torch/d' adds_up
  broken 's/^| torch | passed/| torch | FAILED/' adds_up
  broken 's/^\([0-9]*\) passed, 1 failed/\1 passed, 2 failed/' adds_up
  must_not cases_exist "$STAND_IN"
  sed 's/"device and host: one step/"device and host: no step/' "$here/../gpu.sh" >"$ROOT/renamed.sh"
  must_not cases_exist "$ROOT/renamed.sh"
  sleep 600 &
  echo $! >"$ROOT/hanging"
  must_not all_gone
  kill -s KILL $!

  context="control: the report is written only after a row"
  reset
  sabotage '/^begin() {/,/^}/{/write_report/d}'
  run_until_killed KILL "tests: replay"
  kill -s KILL "$(<"$ROOT/hanging")"
  must_not row "tests: replay" "not finished"

  context="control: the report is written in place"
  reset
  sabotage 's/>"$gpu_report.part") && mv .*; then/>"$gpu_report"); then/'
  KILLED_BEFORE_RENAMING=memcheck
  ln -sf "$STAND_IN" "$ROOT/path/mv"
  run
  must_not is_status 137

  context="control: a failure ends all"
  reset
  sabotage 's/^  report "gpu: $name".*/[[ "$verdict" == FAILED* ]] \&\& finish/'
  STAGES_THAT_FAIL="|bench|"
  run
  must_not rows_but passed bench

  context="control: the cases are not counted"
  reset
  sabotage 's/ran == 0 ||/ran < 0 \&\&/'
  STAGES_THAT_ARE_EMPTY="|tests: edges|"
  run
  must_not row "tests: edges" FAILED
}
# sabotage SED_SCRIPT: edits the copy of gpu.sh.
sabotage() {
  sed -i "$1" "$ROOT/tests/device/gpu.sh"
  ! cmp -s "$here/../gpu.sh" "$ROOT/tests/device/gpu.sh" || complain "sed has changed nothing"
  must test $? = 0
}

(($# > 0)) || set -- success failures hangs signals missing options launcher control
for group in "$@"; do
  case "$group" in
    success | failures | hangs | signals | missing | options | launcher | control) "$group" ;;
    *) echo "rehearse.sh: no group '$group'" >&2; exit 2 ;;
  esac
done
echo "$runs runs, $checks checks, $wrong wrong"
((wrong == 0 && checks > 0))
