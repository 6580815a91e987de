#!/usr/bin/env bash
# Stands in for every program that tests/run.sh --gpu starts; its own name, a link, tells which. Each stage behaves as
# rehearse.sh asks in STAGES_THAT_FAIL, …_HANG and …_ARE_EMPTY, lists of "|NAME|", and in PACKAGES and GPU.
set -uo pipefail

listed() { [[ "$1" == *"|$2|"* ]]; }

# stage NAME: copies the report that exists while this stage runs, then passes, fails or hangs.
stage() {
  name="$1"
  cp "$ROOT/report.md" "$ROOT/snapshots/$name.md" 2>/dev/null
  if listed "$STAGES_THAT_HANG" "$name"; then
    echo "$BASHPID" >"$ROOT/hanging"
    exec sleep 60
  fi
  if listed "$STAGES_THAT_FAIL" "$name"; then
    # shellcheck disable=SC2016
    printf 'a line of %s | with a bar\n```\nand a fence\n' "$name"
    return 1
  fi
}

# cases COUNT: prints a summary as doctest does.
cases() {
  listed "$STAGES_THAT_ARE_EMPTY" "$name" && set -- 0
  echo "[doctest] test cases: $1 | $1 passed | 0 failed | 9 skipped"
}

need_gpu() {
  [[ "$GPU" == yes ]] && return
  echo "skipped: no GPU (a stand-in)"
  exit 77
}

refuse() {
  printf 'CMake Error:\n  %s\n\n' "$1"
  exit 1
}

cmake_stand_in() {
  echo "cmake $*" >>"$ROOT/cmake_calls"
  case "$*" in
    --version) echo "cmake version 3.25.1" ;;
    *--preset*)
      [[ "$GPU" == unseen ]] && refuse 'CUDA_ARCHITECTURES is set to "native", but no GPU was detected.'
      if [[ "$*" == *DEVICE_TESTS=ON* ]]; then
        listed "$PACKAGES" sound || refuse "Something that nobody has foreseen"
        listed "$PACKAGES" doctest || refuse $'The tests need the package doctest,\n  which was not found.  On Debian'
        command -v python3 >/dev/null || refuse $'The device tests\n  need python3, which was not found: `bash'
        : >"$ROOT/build/with_tests"
      else
        rm -f "$ROOT/build/with_tests"
      fi
      ;;
    *"--target help"*)
      echo "... slamb_bench_gpu"
      if [[ -e "$ROOT/build/with_tests" ]]; then
        echo "... slamb_device_tests"
        if listed "$PACKAGES" mpi; then echo "... slamb_device_mpi_tests"; fi
        if listed "$PACKAGES" nccl; then echo "... slamb_device_nccl_tests"; fi
      fi
      echo "... example_cuda_graph"
      if listed "$PACKAGES" nccl; then echo "... example_nccl"; fi
      ;;
    *)
      case "${*: -1}" in
        slamb_bench_gpu) stage "build bench" ;;
        slamb_device_tests) stage "build tests" ;;
        slamb_device_nccl_tests) stage "build nccl" ;;
        example_cuda_graph) stage "build examples" ;;
      esac || exit
      mkdir -p build/gpu/bin build/gpu/slamb_device_recipes.dir
      : >build/gpu/slamb_device_recipes.dir/timed_recipes.cu.o.ptxas.txt
      ln -sf "$STAND_IN" "build/gpu/bin/${*: -1}"
      ;;
  esac
}

case "$(basename "$0") $*" in
  cmake\ *) cmake_stand_in "$@" ;;
  "nvcc --version") echo "Cuda compilation tools, release 13.0, V13.0.88" ;;
  nvidia-smi\ *) echo "GPU of a stand-in" ;;
  mv\ *)
    # The rename that would publish the report of this stage is interrupted: the script is killed.
    if [[ -n "$KILLED_BEFORE_RENAMING" ]] && grep -q "^| $KILLED_BEFORE_RENAMING | not finished" "${*: -2:1}"; then
      kill -s KILL "$PPID"
      exit 1
    fi
    exec "$REAL_MV" "$@"
    ;;
  mpirun\ *)
    [[ "${OMPI_ALLOW_RUN_AS_ROOT:-}" == 1 ]] || exit 1
    exec "$3"
    ;;
  slamb_bench_gpu\ *)
    need_gpu
    stage bench >&2 || exit
    printf '\nGPU of a stand-in\n\n'
    listed "$STAGES_THAT_ARE_EMPTY" bench || printf '| step | ms |\n| --- | --: |\n| `lamb` | 1 |\n'
    ;;
  python3\ *torch_adamw.py*)
    if ! listed "$PACKAGES" torch; then
      echo "skipped: no PyTorch"
      exit 77
    fi
    [[ "$2" == --bench && -x "$3" ]] && stage torch >&2 || exit
    printf '| step | ms |\n| --- | --: |\n| `fused` | 1 |\n'
    ;;
  "python3 -c import pytest, torch, slamb") listed "$PACKAGES" slamb ;;
  "python3 examples/pytorch/bench/gpu_step.py")
    need_gpu
    stage "pytorch: costs" >&2 || exit
    printf '| step | µs |\n| --- | --: |\n| `AdamW` | 1 |\n'
    ;;
  python3\ -m\ pytest\ -q\ -rs\ *test_ranks.py)
    stage "nccl: torchrun" || exit
    if listed "$PACKAGES" one_rank; then
      printf 'SKIPPED [2] examples/pytorch/tests/gpu/test_ranks.py:30: NCCL refuses two ranks\n2 skipped in 0.10s\n'
    else
      echo "4 passed in 0.10s"
    fi
    ;;
  python3\ -m\ pytest\ *)
    stage "pytorch: tests" || exit
    echo "3 passed in 0.10s"
    ;;
  "python3 tests/device/resources.py --markdown "*/timed_recipes.cu.o) printf '| kernel |\n| --- |\n| a kernel |\n' ;;
  slamb_device_tests\ *--source-file=*)
    need_gpu
    file="${*: -1}" file="${file#*/}"
    stage "tests: ${file%.*}" || exit
    cases 2
    ;;
  compute-sanitizer\ *)
    stage "$2" || exit
    filter="${*: -1}"
    filter="${filter//[!,]/}"
    cases "$((${#filter} + 1))"
    ;;
  slamb_device_mpi_tests\ *)
    need_gpu
    stage "tests: processes" || exit
    cases 2
    ;;
  slamb_device_nccl_tests\ --ranks\ *)
    need_gpu
    if listed "$PACKAGES" one_rank; then
      echo "skipped: NCCL refuses several ranks on one GPU: Duplicate GPU detected"
      exit 77
    fi
    name="nccl: $2 ranks"
    if [[ "${*: -1}" != 1 ]]; then name+=", models of ${*: -1} shards"; fi
    stage "$name" || exit
    listed "$STAGES_THAT_ARE_EMPTY" "$name" || echo "57 ok, 0 wrong"
    ;;
  "example_cuda_graph ")
    need_gpu
    stage "examples: cuda"
    ;;
  "example_nccl --ranks 1") stage "examples: nccl, 1 rank" ;;
  "example_nccl --ranks 2")
    if ! listed "$PACKAGES" two_gpus; then
      echo "skipped: NCCL needs a GPU for each rank"
      exit 77
    fi
    stage "examples: nccl, 2 ranks"
    ;;
  *)
    echo "no stand-in for: $0 $*" >&2
    exit 1
    ;;
esac
