#!/usr/bin/env bash
# Installs what is missing to build the programs and the tests, with the system's package manager.
#
#   bash cmake/bootstrap.sh [build] [train] [test] [bench] [lint] [cross] [docs] [pytorch] [--check]
#
# Groups: build (compiler and CMake), train (the example's libraries and gnuplot), test (what the tests of the library need), bench (what
# the benchmarks need), lint (another compiler, clang-format, clang-tidy, and what the checks of sources and scripts need), cross (on
# x86-64: a compiler for aarch64 and qemu, which runs what it makes), docs (what builds the site), pytorch (what the tests of the Python
# package and of examples/libtorch need). No group: build, train, test, bench and lint.
# --check installs nothing and exits 1 if something is missing.
# On Debian and Ubuntu missing packages are installed by apt, as root or through sudo; a machine that has them all needs no
# network. Elsewhere the names are listed and the script exits 1, unless the tools and libraries are all there already.
set -euo pipefail

build_packages=(g++ cmake ninja-build)
train_packages=(libeigen3-dev libcli11-dev nlohmann-json3-dev gnuplot-nox)
test_packages=(doctest-dev libcli11-dev openmpi-bin libopenmpi-dev procps)
bench_packages=(libbenchmark-dev libcli11-dev nlohmann-json3-dev python3)
lint_packages=(clang clang-format clang-tidy python3)
docs_packages=(doxygen python3 python3-sphinx python3-myst-parser python3-breathe furo)
# Without OpenBLAS, Debian's torch multiplies matrices by the reference BLAS, twenty times as slowly.
pytorch_packages=(python3-torch python3-venv python3-matplotlib python3-tqdm libopenblas0-pthread libtorch-dev)
cross_packages=()
if [[ "$(uname -m)" == x86_64 ]]; then cross_packages=(g++-aarch64-linux-gnu qemu-user); fi

usage() { sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

check_only=false
any_group=false
wanted=()
for argument in "$@"; do
  case "$argument" in
    build) wanted+=("${build_packages[@]}") any_group=true ;;
    train) wanted+=("${train_packages[@]}") any_group=true ;;
    test) wanted+=("${test_packages[@]}") any_group=true ;;
    bench) wanted+=("${bench_packages[@]}") any_group=true ;;
    lint) wanted+=("${lint_packages[@]}") any_group=true ;;
    cross) wanted+=(${cross_packages[@]+"${cross_packages[@]}"}) any_group=true ;;
    docs) wanted+=("${docs_packages[@]}") any_group=true ;;
    pytorch) wanted+=("${pytorch_packages[@]}") any_group=true ;;
    --check) check_only=true ;;
    -h | --help) usage; exit 0 ;;
    *) echo "bootstrap.sh: '$argument' is no group; expected build, train, test, bench, lint, cross, docs, pytorch or --check" >&2; exit 2 ;;
  esac
done
if ! $any_group; then
  wanted=("${build_packages[@]}" "${train_packages[@]}" "${test_packages[@]}" "${bench_packages[@]}" "${lint_packages[@]}")
fi

# A package counts as present when dpkg has it, or when what it brings is there by other means (a tool on PATH, a package
# found through CMAKE_PREFIX_PATH), so that a machine with own builds is left alone.
installed() {
  dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed && return 0
  case "$1" in
    g++) [[ -n "${CXX:-}" ]] && command -v "${CXX%% *}" >/dev/null || command -v g++ >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    gnuplot-nox) command -v gnuplot >/dev/null ;;
    clang) command -v clang++ >/dev/null ;;
    cmake | clang-format | clang-tidy | python3 | doxygen) command -v "$1" >/dev/null ;;
    procps) command -v pgrep >/dev/null ;;
    g++-aarch64-linux-gnu) command -v aarch64-linux-gnu-g++ >/dev/null ;;
    qemu-user) command -v qemu-aarch64 >/dev/null || command -v qemu-aarch64-static >/dev/null ;;
    python3-sphinx) command -v sphinx-build >/dev/null ;;
    python3-myst-parser) has_module myst_parser ;;
    python3-breathe) has_module breathe ;;
    furo) has_module furo ;;
    python3-torch) python3 -c 'import torch' 2>/dev/null ;;
    python3-matplotlib) python3 -c 'import matplotlib' 2>/dev/null ;;
    python3-tqdm) python3 -c 'import tqdm' 2>/dev/null ;;
    libopenblas0-pthread) ldconfig -p 2>/dev/null | grep -q libopenblas ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    openmpi-bin) command -v mpirun >/dev/null ;;
    libopenmpi-dev) command -v mpicxx >/dev/null ;;
    libtorch-dev) has_config Torch ;;
    libeigen3-dev) has_config Eigen3 ;;
    libcli11-dev) has_config CLI11 ;;
    nlohmann-json3-dev) has_config nlohmann_json ;;
    doctest-dev) has_config doctest ;;
    libbenchmark-dev) has_config benchmark ;;
    *) return 1 ;;
  esac
}

# has_module NAME: the Python that runs sphinx-build has it.
has_module() {
  local sphinx python
  sphinx="$(command -v sphinx-build)" || return 1
  python="$(sed -n '1s/^#! *//p' "$sphinx" | tr -d '\0')"
  ${python:-false} -c "import $1" 2>/dev/null
}

# has_config NAME: NAMEConfig.cmake, in any case, lies under a prefix where CMake looks.
has_config() {
  shopt -s nocaseglob
  local prefixes prefix
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in ${prefixes[@]+"${prefixes[@]}"} /usr/local /opt/homebrew /usr; do
    [[ -d "$prefix" ]] || continue
    if compgen -G "$prefix/lib*/cmake/$1*/*onfig.cmake" >/dev/null ||
       compgen -G "$prefix/lib/*/cmake/$1*/*onfig.cmake" >/dev/null ||
       compgen -G "$prefix/share/cmake/$1*/*onfig.cmake" >/dev/null ||
       compgen -G "$prefix/share/$1*/cmake/*onfig.cmake" >/dev/null; then
      return 0
    fi
  done
  return 1
}

missing=()
for package in ${wanted[@]+"${wanted[@]}"}; do
  installed "$package" || missing+=("$package")
done

if ((${#missing[@]} == 0)); then
  echo "bootstrap: all ${#wanted[@]} packages are there"
elif $check_only; then
  echo "bootstrap: missing: ${missing[*]}" >&2
  exit 1
elif ! command -v apt-get >/dev/null; then
  echo "bootstrap: this system has no apt. Please install what Debian calls: ${missing[*]}" >&2
  echo "           (a library in a place of its own is found through CMAKE_PREFIX_PATH), then try again." >&2
  exit 1
else
  as_root=()
  if [[ "$(id -u)" != 0 ]]; then
    if ! command -v sudo >/dev/null; then
      echo "bootstrap: neither root nor sudo. As root: apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "bootstrap: installing ${missing[*]}"
  apt=(${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -q -y)
  # A failed update is no verdict: lists that are there already may do.
  "${apt[@]}" update >/dev/null || echo "bootstrap: apt-get update failed; trying with the lists there are" >&2
  log="$(mktemp)"
  trap 'rm -f "$log"' EXIT
  if ! "${apt[@]}" install --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    echo "bootstrap: apt could not install ${missing[*]}" >&2
    exit 1
  fi
fi

# Too old a CMake fails late and unclearly: say it here.
if command -v cmake >/dev/null; then
  version="$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')"
  if [[ "$(printf '%s\n' 3.24 "$version" | sort -V | head -n 1)" != 3.24 ]]; then
    echo "bootstrap: CMake $version is too old; 3.24 or newer is needed (Debian 12, Ubuntu 24.04, or \`pip install cmake\`)" >&2
    exit 1
  fi
fi
