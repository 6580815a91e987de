# Part of tests/run.sh: the device tests on the GPU at hand, and a report of them in Markdown.

gpu_build=build/gpu

configure_and_build_gpu() {
  local generator=()
  command -v ninja >/dev/null || generator=(-G "Unix Makefiles")
  cmake --preset cuda -B "$gpu_build" ${generator[@]+"${generator[@]}"} -DCMAKE_CUDA_ARCHITECTURES=native \
    -DSLAMB_WARNINGS_AS_ERRORS=OFF && cmake --build "$gpu_build" --parallel "$jobs"
}

# first_line COMMAND…: of its output; a dash where it is missing or fails.
first_line() {
  local text
  text="$("$@" 2>/dev/null | grep -m 1 .)" || text=
  echo "${text:--}"
}

# sanitizer TOOL: the tests once more under a tool of compute-sanitizer, as one test.
sanitizer() {
  if [[ -z "$compute_sanitizer" ]]; then
    skipped=$((skipped + 1))
    report "gpu: $1" "$SECONDS" "skipped: no compute-sanitizer on PATH or beside nvcc"
    echo "| $1 | skipped: no compute-sanitizer |" >>"$details"
    return 0
  fi
  local verdict=FAILED
  check "gpu: $1" "$compute_sanitizer" --tool "$1" --error-exitcode 1 "$gpu_build/bin/slamb_device_tests" && verdict=passed
  echo "| $1 | $verdict |" >>"$details"
}

# time_steps: the benchmarks of steps, as one test; what they print is kept for the report.
time_steps() {
  local verdict=FAILED
  check "gpu: bench" bash -c '"$1/bin/slamb_bench_gpu" --markdown >"$2"' bench "$gpu_build" "$steps" && verdict=passed
  echo "| benchmarks of steps | $verdict |" >>"$details"
}

# test_gpu REPORT: builds, tests, writes the report.
test_gpu() {
  local target="$1" started=$SECONDS status=0 before
  details="$(mktemp)" steps="$(mktemp)"
  compute_sanitizer="$(command -v compute-sanitizer || command -v "$(dirname "${nvcc:-/}")/compute-sanitizer" || true)"
  export gpu_build CUDACXX="${CUDACXX:-$nvcc}"
  export -f configure_and_build_gpu
  if [[ -z "$CUDACXX" ]]; then
    unset CUDACXX
    failed=$((failed + 1))
    report gpu "$started" "FAILED: no nvcc on PATH or in /usr/local/cuda/bin"
    echo "| build | FAILED: no nvcc |" >>"$details"
  elif ! run configure_and_build_gpu; then
    cat "$log"
    failed=$((failed + 1))
    report "gpu: build" "$started" "FAILED (its tests did not run)"
    echo "| build | FAILED |" >>"$details"
  else
    report "gpu: build" "$started" done
    started=$SECONDS before=$skipped
    local left_out=()
    if (($(nvidia-smi --list-gpus 2>/dev/null | wc -l) < 2)); then
      left_out=(--label-exclude two_gpus)
      echo "| tests that need two GPUs | left out: there is one |" >>"$details"
    fi
    run ctest --test-dir "$gpu_build" --output-on-failure --no-tests=error ${left_out[@]+"${left_out[@]}"} || status=$?
    sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: (.*[^. ]) +\.+ *(\*\*\*)?([A-Z][A-Za-z]+).* ([0-9.]+) sec.*$/| \1 | \3, \4 s |/p' \
      "$log" >>"$details"
    add_up gpu "$started" "$status"
    if ((skipped > before)); then  # what was asked for did not happen
      failed=$((failed + skipped - before)) skipped=$before
      report "gpu: device" "$SECONDS" "FAILED: tests were skipped, for there is no GPU"
    else
      sanitizer memcheck
      sanitizer racecheck
      time_steps
    fi
  fi
  if ! write_gpu_report >"$target"; then
    failed=$((failed + 1))
    report "gpu: report" "$SECONDS" "FAILED: $target could not be written"
  fi
  rm -f "$details" "$steps"
}

# write_gpu_report: the machine, the versions, the tests, times and what kernels use, to the standard output.
write_gpu_report() {
  echo "# Device tests of slamb"
  echo
  echo "| | |"
  echo "| --- | --- |"
  echo "| date | $(date -u +%Y-%m-%dT%H:%MZ) |"
  echo "| commit | $(first_line git describe --always --dirty) |"
  echo "| GPU | $(first_line nvidia-smi --query-gpu=name,memory.total,compute_cap --format=csv,noheader) |"
  echo "| GPUs | $(nvidia-smi --list-gpus 2>/dev/null | wc -l) |"
  echo "| driver | $(first_line nvidia-smi --query-gpu=driver_version --format=csv,noheader) |"
  echo "| nvcc | $("${CUDACXX:-nvcc}" --version 2>/dev/null | sed -n 's/.*release.*, V//p') |"
  echo "| host compiler | $(first_line "${CXX:-c++}" --version) |"
  echo "| CMake | $(first_line cmake --version) |"
  echo "| processor | $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1) |"
  printf '\n## Tests\n\n%s passed, %s failed, %s skipped.\n\n| test | result |\n| --- | --- |\n' "$passed" "$failed" "$skipped"
  cat "$details"
  cat "$steps"
  printf '\n## What kernels use\n\nRegisters of a thread, bytes of shared memory a block, bytes of local memory a thread.\n\n'
  local objects=()
  while IFS= read -r object; do objects+=("${object%.ptxas.txt}"); done \
    < <(find "$gpu_build" \( -path '*/slamb_device_tests.dir/*' -o -path '*/slamb_device_recipes.dir/*' \) \
      -name '*.ptxas.txt' 2>/dev/null | sort)
  python3 tests/device/resources.py --markdown ${objects[@]+"${objects[@]}"} || true
}
