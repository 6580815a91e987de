# Part of tests/run.sh: builds and runs benchmarks and tests on the GPU at hand, and reports on them in Markdown.
#
# Each row of the report counts as one test and has a time limit. The report is written to a second file before and after each
# row, and then renamed. So it is complete at any time, and a killed script loses only the row that runs.

gpu_stages=("build bench" bench torch pytorch "build tests" tests memcheck racecheck synccheck initcheck "build nccl" nccl
  "build examples" examples)

# The cases for compute-sanitizer: memcheck runs all of them, its slower tools only the first.
sanitized_cases=(
  "device and host: one step of random layouts"
  "device: tensors at addresses that are multiples of four bytes and of nothing else"
)

# The Python package with several ranks on one GPU: a row of the stage nccl.
gpu_ranks_test=examples/pytorch/tests/gpu/test_ranks.py

gpu_limit="${SLAMB_GPU_SECONDS:-180}"
gpu_build="${SLAMB_GPU_BUILD:-build/gpu}"
gpu_rows=()           # of the report, in Markdown
gpu_running=          # the name of the row that runs
gpu_pending=()        # stages that have not begun
gpu_missing=false     # true once a program has found no GPU
gpu_report_lost=false # true if the report could not be written the last time

# choose_stages [NAME…]: sets gpu_pending to these and the builds that they need, in the order above; all if none is named.
# Refuses wrong options.
choose_stages() {
  local stage wanted build names
  (($# > 0)) || set -- "${gpu_stages[@]}"
  printf -v names '"%s" ' "${gpu_stages[@]}"
  for wanted in "$@"; do
    [[ " $names" == *" \"$wanted\" "* ]] || refuse "--stage: '$wanted' is not one of $names"
  done
  [[ "$gpu_limit" =~ ^[1-9][0-9]*$ ]] || refuse "SLAMB_GPU_SECONDS: '$gpu_limit' is not a number of seconds"
  [[ ! -e "$gpu_report" || -f "$gpu_report" ]] || refuse "--gpu: $gpu_report is not a file that a report can replace"
  gpu_pending=()
  for stage in "${gpu_stages[@]}"; do
    for wanted in "$@"; do
      case "$wanted" in
        bench | torch) build="build bench" ;;
        pytorch) build="$wanted" ;;  # nothing is built
        nccl | examples) build="build $wanted" ;;
        build\ *) build="$wanted" ;;
        *) build="build tests" ;;
      esac
      if [[ "$stage" == "$wanted" || "$stage" == "$build" ]]; then
        gpu_pending+=("$stage")
        break
      fi
    done
  done
}

# begin NAME: starts a row; settle ends it.
begin() {
  gpu_running="$1" row_started=$SECONDS
  if [[ "${gpu_pending[0]-}" == "$1" ]]; then gpu_pending=("${gpu_pending[@]:1}"); fi
  : >"$log"
  write_report
}

# settle VERDICT: ends the row, counts it, and shows its output if it failed. The verdict `given` is not counted.
settle() {
  local verdict="$1" name="$gpu_running"
  case "$verdict" in
    passed*) passed=$((passed + 1)) ;;
    skipped*) skipped=$((skipped + 1)) ;;
    FAILED*)
      failed=$((failed + 1))
      cat "$log"
      ;;
  esac
  report "gpu: $name" "$row_started" "$verdict"
  end_row "$verdict"
  write_report
}

# end_row VERDICT: puts the row into the report, and the end of its output if it failed.
end_row() {
  gpu_rows+=("| $gpu_running | ${1//|/\\|} | $((SECONDS - row_started)) |")
  if [[ "$1" == FAILED* && -s "$log" ]]; then
    {
      printf '\n### %s\n\n````\n' "$gpu_running"
      printf '%s\n' "$(tail -n 40 "$log" | tr -d '\000-\010\013-\037\177' | sed 's/````/` ` ` `/g')"
      printf '````\n'
    } >>"$gpu_work/outputs"
  fi
  gpu_running=
}

# timed COMMAND…: as run, but stopped after the time limit where `timeout` is installed.
timed() {
  # shellcheck disable=SC2034  # read by run
  command -v timeout >/dev/null && local own_group=(timeout -k 10 "$gpu_limit")
  run "$@"
}
# into FILE COMMAND…: runs it with its standard output in the file.
into() { "${@:2}" >"$1"; }

# judge_status STATUS: sets verdict by the exit status. Programs that need a GPU exit with 77 if there is none.
judge_status() {
  if (($1 == 0)); then
    verdict=passed
  elif (($1 == 77)); then
    verdict="FAILED: there is no GPU" gpu_missing=true
  elif (($1 == 124 || $1 == 137)) && ((SECONDS - row_started >= gpu_limit)); then
    verdict="FAILED: stopped after $gpu_limit seconds"
  else
    verdict="FAILED: exit status $1"
  fi
}

# own_reason: the line in which a program says why it skips itself.
own_reason() { grep -m 1 '^skipped: ' "$log" || echo "skipped: exit status 77"; }

# judge_tables STATUS NAME: as judge_status, for a program that prints tables into NAME.md.
judge_tables() {
  judge_status "$1"
  if [[ "$verdict" == passed ]] && ! grep -q '^|' "$gpu_work/$2.md"; then verdict="FAILED: it printed no table"; fi
}

# judge_cases STATUS [EXPECTED]: as judge_status, for a program of doctest. It must have run as many cases as expected, or any.
judge_cases() {
  local ran='' good=''
  judge_status "$1"
  read -r ran good < <(sed -nE 's/.*test cases: *([0-9]+) \| *([0-9]+) passed.*/\1 \2/p' "$log" | tail -n 1)
  if [[ "$verdict" != passed ]]; then
    verdict+="${ran:+; $good of $ran cases passed}"
  elif [[ -z "$ran" ]]; then
    verdict="FAILED: no summary of the cases"
  elif ((ran == 0 || ran != ${2:-$ran})); then
    verdict="FAILED: $ran cases ran, expected ${2:-one or more}"
  elif ((good < ran)); then
    verdict="FAILED: $good of $ran cases passed"
  else
    verdict="passed: $good of $ran cases"
  fi
}

# configure_gpu and build_programs run in a process of their own, which may be stopped. So they answer by files in $gpu_work:
# built/PROGRAM; absent/PROGRAM if CMake has no such target; refused, with CMake's output, if it could not configure the tests.
configure_gpu() {
  local command=(cmake --preset cuda -B "$gpu_build" "-DCMAKE_CUDA_ARCHITECTURES=${CUDAARCHS:-native}"
    -DSLAMB_WARNINGS_AS_ERRORS=OFF -DSLAMB_BUILD_DEVICE_BENCHMARK=ON)
  command -v ninja >/dev/null || command+=(-G "Unix Makefiles")
  [[ -e "$gpu_work/configured" ]] && return 0
  if ! "${command[@]}" -DSLAMB_BUILD_DEVICE_TESTS=ON >"$gpu_work/tried" 2>&1; then
    mv "$gpu_work/tried" "$gpu_work/refused"
    "${command[@]}" -DSLAMB_BUILD_DEVICE_TESTS=OFF || return
  fi
  : >"$gpu_work/configured"
}
build_programs() {
  local program targets status=0
  configure_gpu && targets="$(cmake --build "$gpu_build" --target help)" || return
  for program in "$@"; do
    if ! grep -qw "$program" <<<"$targets"; then
      : >"$gpu_work/absent/$program"
    elif cmake --build "$gpu_build" --parallel "$jobs" --target "$program"; then
      : >"$gpu_work/built/$program"
    else
      status=1
    fi
  done
  return "$status"
}

built_one() {
  local program
  for program in "$@"; do
    if [[ -e "$gpu_work/built/$program" ]]; then return 0; fi
  done
  return 1
}

# build NAME PROGRAM…: a row for the build of these. If CMake has none of them, the verdict says why the first is missing.
build() {
  local program status=0
  begin "$1"
  shift
  if $gpu_missing; then
    settle "skipped: there is no GPU"
  elif [[ -n "${SLAMB_GPU_BUILD:-}" ]]; then
    for program in "$@"; do
      if [[ -x "$gpu_build/bin/$program" ]]; then : >"$gpu_work/built/$program"; else : >"$gpu_work/absent/$program"; fi
    done
    verdict=given
    if ! built_one "$@"; then why_absent "$1"; fi
    settle "$verdict"
  elif [[ -z "${CUDACXX:-}" ]]; then
    settle "FAILED: no nvcc on PATH or in /usr/local/cuda/bin"
  else
    timed build_programs "$@" || status=$?
    judge_status "$status"
    if ((status != 0)) && grep -qE 'no (NVIDIA )?GPU was detected' "$log"; then
      judge_status 77
      rm -f "$gpu_build"/CMakeFiles/*/CMakeCUDACompiler.cmake  # or CMake would not look again
    elif ((status == 0)) && ! built_one "$@"; then
      why_absent "$1"
    fi
    settle "$verdict"
  fi
  list_kernels
}

# why_absent PROGRAM: sets verdict to the reason why there is no such program.
why_absent() {
  local package
  if [[ -n "${SLAMB_GPU_BUILD:-}" ]]; then
    verdict="skipped: $gpu_build/bin/$1 is missing"
    return
  fi
  case "$1" in
    example_nccl | slamb_device_nccl_tests) verdict="skipped: NCCL was not found" ;;
    slamb_device_mpi_tests) verdict="skipped: MPI was not found" ;;
    *) verdict="FAILED: CMake has no target $1" ;;
  esac
  if [[ -e "$gpu_work/refused" && "$1" == slamb_device_* ]]; then
    package="$(tr -s ' \n' ' ' <"$gpu_work/refused" |
      sed -nE 's/.* tests need (the package )?([A-Za-z0-9]+), which was not found.*/\2/p')"
    verdict="skipped: $package was not found"
    if [[ -z "$package" ]]; then
      verdict="FAILED: the device tests could not be configured"
      cp "$gpu_work/refused" "$log"
    fi
  fi
}

# ready PROGRAM: returns 0 if it can be run; otherwise settles the row and returns 1.
ready() {
  if $gpu_missing; then
    settle "skipped: there is no GPU"
  elif [[ -e "$gpu_work/built/$1" ]]; then
    return 0
  else
    verdict="skipped: $1 was not built"
    if [[ -e "$gpu_work/absent/$1" ]]; then why_absent "$1"; fi
    settle "${verdict/#FAILED/skipped}"
  fi
  return 1
}

bench_gpu() {
  local status=0
  begin bench
  ready slamb_bench_gpu || return
  timed into "$gpu_work/bench.md" "$gpu_build/bin/slamb_bench_gpu" --markdown || status=$?
  if ((status == 77)); then mv "$gpu_work/bench.md" "$log"; fi
  judge_tables "$status" bench
  settle "$verdict"
}

bench_torch() {
  local script=bench/gpu/torch_adamw.py status=0
  begin torch
  ready slamb_bench_gpu || return
  if [[ ! -e "$script" ]]; then
    settle "skipped: $script is missing"
  elif ! command -v python3 >/dev/null; then
    settle "skipped: python3 is missing"
  else
    timed into "$gpu_work/torch.md" python3 "$script" --bench "$gpu_build/bin/slamb_bench_gpu" || status=$?
    if ((status == 77)); then
      mv "$gpu_work/torch.md" "$log"
      settle "$(own_reason)"
    else
      judge_tables "$status" torch
      settle "$verdict"
    fi
  fi
}

# begin_pytorch NAME: begins a row of the Python package. False if it cannot run; the row is settled then.
begin_pytorch() {
  begin "$1"
  if $gpu_missing; then
    settle "skipped: there is no GPU"
  elif ! command -v python3 >/dev/null || ! "${python[@]}" -c 'import pytest, torch, slamb' 2>"$log"; then
    settle "skipped: python3 with pytest, torch and slamb is missing"
  else
    return 0
  fi
  return 1
}

# The Python package. SLAMB_GPU_PYTHON: the folder of examples/pytorch/tests/pack_for_gpu.sh, if it is not installed.
run_pytorch() {
  local status=0 python=(env "PYTHONPATH=${SLAMB_GPU_PYTHON:-}" python3)
  gpu_pending=("pytorch: costs" "pytorch: tests" ${gpu_pending[@]+"${gpu_pending[@]:1}"})
  if begin_pytorch "pytorch: costs"; then
    timed into "$gpu_work/pytorch.md" "${python[@]}" examples/pytorch/bench/gpu_step.py || status=$?
    judge_tables "$status" pytorch
    settle "$verdict"
  fi
  if begin_pytorch "pytorch: tests"; then
    status=0
    timed "${python[@]}" -m pytest -q -p no:cacheprovider examples/pytorch/tests/gpu --ignore "$gpu_ranks_test" || status=$?
    judge_status "$status"
    if [[ "$verdict" == passed ]]; then verdict="passed: $(tail -n 1 "$log")"; fi
    settle "$verdict"
  fi
}

# run_tests: a row for each source with test cases, and one for ranks that are processes.
run_tests() {
  local source name names=() status
  for source in tests/device/*.{cpp,cu}; do
    name="${source##*/}"
    if grep -q '^TEST_CASE' "$source"; then names+=("${name%.*}"); fi
  done
  begin tests
  ready slamb_device_tests || return
  gpu_pending=("${names[@]/#/tests: }" "tests: processes" ${gpu_pending[@]+"${gpu_pending[@]}"})
  for name in "${names[@]}"; do
    begin "tests: $name"
    ready slamb_device_tests || continue
    status=0
    timed "$gpu_build/bin/slamb_device_tests" --no-colors "--source-file=*/$name.*" || status=$?
    judge_cases "$status"
    settle "$verdict"
  done

  begin "tests: processes"
  ready slamb_device_mpi_tests || return
  if ! command -v mpirun >/dev/null; then
    settle "skipped: mpirun is missing"
    return
  fi
  local settings=()
  mapfile -t settings < <(grep -oE 'OMPI_\w+=\w+' cmake/slamb_mpirun.cmake)
  status=0
  timed env "${settings[@]}" mpirun -n 2 "$gpu_build/bin/slamb_device_mpi_tests" --no-colors || status=$?
  judge_cases "$status"
  settle "$verdict"
}

# nccl_ranks NUMBER [SHARDS]: a row for so many ranks over NCCL on one GPU. The program's last line has its counts.
nccl_ranks() {
  local status=0 counts
  begin "nccl: $1 ranks${2:+, models of $2 shards}"
  ready slamb_device_nccl_tests || return
  timed "$gpu_build/bin/slamb_device_nccl_tests" --ranks "$1" --shards "${2:-1}" || status=$?
  counts="$(grep -oE '^[0-9]+ ok, [0-9]+ wrong$' "$log" | tail -n 1)"
  if ((status == 77)) && ! grep -q '^skipped: no GPU' "$log"; then
    settle "$(own_reason)"
    return
  fi
  judge_status "$status"
  if [[ "$verdict" != passed ]]; then
    verdict+="${counts:+; $counts}"
  elif [[ ! "$counts" =~ ^[1-9] ]]; then
    verdict="FAILED: ${counts:-no counts}"
  else
    verdict="passed: $counts"
  fi
  settle "$verdict"
}
# The scenarios of ranks that are processes, in C++ and by torchrun.
run_nccl() {
  local status=0 python=(env "PYTHONPATH=${SLAMB_GPU_PYTHON:-}" python3) last reason
  gpu_pending=("nccl: 2 ranks" "nccl: 4 ranks" "nccl: 4 ranks, models of 2 shards" "nccl: torchrun" ${gpu_pending[@]+"${gpu_pending[@]:1}"})
  nccl_ranks 2
  nccl_ranks 4
  nccl_ranks 4 2
  begin_pytorch "nccl: torchrun" || return
  timed "${python[@]}" -m pytest -q -rs -p no:cacheprovider -k cuda "$gpu_ranks_test" || status=$?
  judge_status "$status"
  last="$(tail -n 1 "$log")"
  if [[ "$verdict" == passed ]]; then verdict="passed: $last"; fi
  if [[ "$verdict" == passed* && "$last" != *" passed"* ]]; then  # pytest is content if it has skipped all
    reason="$(sed -nE '/^SKIPPED/{s/^SKIPPED.*\.py(:[0-9]+)?: //p;q}' "$log")"
    verdict="skipped: ${reason:-$last}"
  fi
  settle "$verdict"
}

# sanitize TOOL: a row for a few cases under a tool of compute-sanitizer.
sanitize() {
  local cases=("${sanitized_cases[@]}") filter status=0
  [[ "$1" == memcheck ]] || cases=("${cases[0]}")
  filter="$(IFS=,; echo "${cases[*]}")"
  begin "$1"
  ready slamb_device_tests || return
  if [[ -z "$compute_sanitizer" ]]; then
    settle "skipped: no compute-sanitizer on PATH or beside nvcc"
    return
  fi
  timed "$compute_sanitizer" --tool "$1" --error-exitcode 1 "$gpu_build/bin/slamb_device_tests" --no-colors "--test-case=$filter" || status=$?
  judge_cases "$status" "${#cases[@]}"
  settle "$verdict"
}

# example NAME PROGRAM ARGUMENT…: a row for one run. NCCL's exits with 77 if there are fewer GPUs than ranks.
example() {
  local status=0
  begin "examples: $1"
  ready "$2" || return
  timed "$gpu_build/bin/$2" "${@:3}" || status=$?
  if ((status == 77)) && [[ "$2" == example_nccl ]]; then
    settle "$(own_reason)"
  else
    judge_status "$status"
    settle "$verdict"
  fi
}
run_examples() {
  gpu_pending=("examples: cuda" "examples: nccl, 1 rank" "examples: nccl, 2 ranks" ${gpu_pending[@]+"${gpu_pending[@]:1}"})
  example cuda example_cuda_graph
  example "nccl, 1 rank" example_nccl --ranks 1
  example "nccl, 2 ranks" example_nccl --ranks 2
}

# test_gpu: runs the chosen stages.
test_gpu() {
  local stage chosen=("${gpu_pending[@]}")
  gpu_work="$(mktemp -d)"
  mkdir "$gpu_work/built" "$gpu_work/absent"
  compute_sanitizer="$(command -v compute-sanitizer || command -v "$(dirname "${nvcc:-/}")/compute-sanitizer" || true)"
  export gpu_build gpu_work
  export -f configure_gpu build_programs into
  if [[ -n "${CUDACXX:-$nvcc}" ]]; then export CUDACXX="${CUDACXX:-$nvcc}"; fi
  list_kernels
  describe_machine >"$gpu_work/machine"
  write_report
  if $gpu_report_lost; then return; fi  # rather than work for minutes without a report
  for stage in "${chosen[@]}"; do
    case "$stage" in
      "build bench") build "$stage" slamb_bench_gpu ;;
      "build tests") build "$stage" slamb_device_tests slamb_device_mpi_tests ;;
      "build nccl") build "$stage" slamb_device_nccl_tests ;;
      "build examples") build "$stage" example_cuda_graph example_nccl ;;
      bench) bench_gpu ;;
      torch) bench_torch ;;
      pytorch) run_pytorch ;;
      tests) run_tests ;;
      nccl) run_nccl ;;
      examples) run_examples ;;
      *) sanitize "$stage" ;;
    esac
  done
}

# close_gpu_report: writes the report for the last time. A row that still runs was interrupted by a signal.
close_gpu_report() {
  [[ -n "${gpu_work:-}" ]] || return 0
  if [[ -n "$gpu_running" ]]; then end_row "FAILED: interrupted"; fi
  write_report
  if $gpu_report_lost; then
    failed=$((failed + 1))
    report "gpu: report" "$SECONDS" "FAILED: $gpu_report could not be written"
  fi
  rm -rf "$gpu_work"
}

# write_report: prints it in a subshell, in which signals have their default action and no trap writes into the file.
write_report() {
  if (print_report >"$gpu_report.part") && mv -f -- "$gpu_report.part" "$gpu_report"; then
    gpu_report_lost=false
  else
    gpu_report_lost=true
  fi
}

print_report() {
  cat "$gpu_work/machine"
  printf '\n## Stages\n\n%s passed, %s failed, %s skipped.\n\n' "$passed" "$failed" "$skipped"
  printf '| stage | result | seconds |\n| --- | --- | --: |\n'
  if ((${#gpu_rows[@]} > 0)); then printf '%s\n' "${gpu_rows[@]}"; fi
  if [[ -n "$gpu_running" ]]; then printf '| %s | not finished | - |\n' "$gpu_running"; fi
  if ((${#gpu_pending[@]} > 0)); then printf '| %s | not run | - |\n' "${gpu_pending[@]}"; fi
  if [[ -e "$gpu_work/outputs" ]]; then printf '\n## Output of failures\n' && cat "$gpu_work/outputs"; fi
  if [[ -s "$gpu_work/bench.md" ]]; then printf '\n## Benchmark\n\n%s\n' "$(<"$gpu_work/bench.md")"; fi
  if [[ -s "$gpu_work/torch.md" ]]; then printf '\n## PyTorch\n\n%s\n' "$(<"$gpu_work/torch.md")"; fi
  if [[ -s "$gpu_work/pytorch.md" ]]; then printf '\n## Steps from PyTorch\n\n%s\n' "$(<"$gpu_work/pytorch.md")"; fi
  printf '\n## Resources of kernels\n\n'
  printf 'Registers per thread, bytes of shared memory per block, bytes of local memory per thread.\n\n'
  cat "$gpu_work/kernels"
}

# list_kernels: the table of registers and memory, by the reports of ptxas.
list_kernels() {
  local object objects=()
  while IFS= read -r object; do objects+=("${object%.ptxas.txt}"); done \
    < <(find "$gpu_build" \( -path '*/slamb_device_tests.dir/*' -o -path '*/slamb_device_recipes.dir/*' \) \
      -name '*.ptxas.txt' 2>/dev/null | sort)
  if ((${#objects[@]} == 0)) || ! command -v python3 >/dev/null; then
    echo "No reports of ptxas: they are written by python3 when $gpu_build is built."
  else
    python3 tests/device/resources.py --markdown "${objects[@]}"
  fi >"$gpu_work/kernels"
}

# first_line COMMAND…: of its output; a dash where it is missing or fails.
first_line() {
  local text limit=()
  command -v timeout >/dev/null && limit=(timeout -k 1 20)
  text="$(${limit[@]+"${limit[@]}"} "$@" 2>/dev/null | grep -m 1 .)" || text=
  echo "${text:--}"
}

describe_machine() {
  echo "# Device tests of slamb"
  echo
  echo "| | |"
  echo "| --- | --- |"
  echo "| date | $(date -u +%Y-%m-%dT%H:%MZ) |"
  echo "| commit | ${SLAMB_COMMIT:-$(first_line git describe --always --dirty)} |"
  echo "| GPU | $(first_line nvidia-smi --query-gpu=name,memory.total,compute_cap --format=csv,noheader) |"
  echo "| GPUs | $(first_line nvidia-smi --query-gpu=count --format=csv,noheader) |"
  echo "| driver | $(first_line nvidia-smi --query-gpu=driver_version --format=csv,noheader) |"
  echo "| nvcc | $("${CUDACXX:-nvcc}" --version 2>/dev/null | sed -n 's/.*release.*, V//p') |"
  echo "| host compiler | $(first_line "${CXX:-c++}" --version) |"
  echo "| CMake | $(first_line cmake --version) |"
  echo "| processor | $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1) |"
}
