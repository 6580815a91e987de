#!/usr/bin/env bash
# nccl_ranks.sh NUMBER PROGRAM [ARGUMENT]…: runs a program as so many processes that share one GPU over NCCL.
#
#   bash tests/device/nccl_ranks.sh 2 build/cuda/bin/my_program
#   bash tests/device/nccl_ranks.sh 4 python3 train.py
#
# Each process has RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as from torchrun; LOCAL_RANK is 0, because all
# use the same GPU: that of CUDA_VISIBLE_DEVICES, or the first. Each line of a process begins with its rank.
#
# NCCL refuses two ranks on one GPU of one host, so each process claims a host of its own (NCCL_HOSTID), and all bytes go through
# sockets of the loopback interface: times mean nothing. Variables that are set already are kept, but NCCL_HOSTID.
#
# When a process fails, the others are ended after SLAMB_RANKS_GRACE seconds (30): their own errors tell more. Exit: 0; 1 if a
# process failed; 2 for a wrong command line; 77, with a line "skipped: …", without a GPU, without NCCL, or if NCCL refuses.
set -uo pipefail

refuse() {
  echo "nccl_ranks.sh: $1" >&2
  exit 2
}
skip() {
  echo "skipped: $1"
  exit 77
}

[[ "${1:-}" =~ ^[1-9][0-9]?$ ]] || refuse "expected NUMBER PROGRAM [ARGUMENT]…, with a number of ranks from 1 to 99"
(($# > 1)) || refuse "the program is missing"
number="$1" grace="${SLAMB_RANKS_GRACE:-30}"
shift
command -v "$1" >/dev/null || refuse "'$1' is not a program"
[[ "$grace" =~ ^[0-9]+$ ]] || refuse "SLAMB_RANKS_GRACE: '$grace' is not a number of seconds"

# has_nccl: some libnccl.so.2 is there: the loader's, the CUDA Toolkit's, or that of a PyTorch, which has its own.
has_nccl() {
  local folder folders
  { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep -q 'libnccl\.so\.2' && return
  IFS=: read -ra folders <<<"${LD_LIBRARY_PATH:-}"
  for folder in "${folders[@]}" /usr/local/cuda/lib64 /usr/local/cuda/lib; do
    if [[ -n "$folder" && -e "$folder/libnccl.so.2" ]]; then return 0; fi
  done
  command -v python3 >/dev/null &&
    python3 -c 'import sys, torch.distributed as d; sys.exit(not d.is_nccl_available())' 2>/dev/null
}

gpus="$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU')"
((gpus > 0)) || skip "no GPU (nvidia-smi lists none)"
has_nccl || skip "no NCCL (libnccl.so.2)"

work="$(mktemp -d)"
processes=() groups=()
# shellcheck disable=SC2317  # called by trap
finish() {
  local group
  for group in ${groups[@]+"${groups[@]}"}; do kill -s KILL -- "-$group" 2>/dev/null; done  # with what an ended rank has left
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-lo}" NCCL_NET="${NCCL_NET:-Socket}" NCCL_IB_DISABLE="${NCCL_IB_DISABLE:-1}"
export NCCL_P2P_DISABLE="${NCCL_P2P_DISABLE:-1}" NCCL_SHM_DISABLE="${NCCL_SHM_DISABLE:-1}"
export NCCL_MAX_CTAS="${NCCL_MAX_CTAS:-2}" CUDA_MODULE_LOADING="${CUDA_MODULE_LOADING:-EAGER}"
export NCCL_DEBUG="${NCCL_DEBUG:-WARN}"  # says why NCCL refuses
export WORLD_SIZE="$number" LOCAL_RANK=0 MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
export MASTER_PORT="${MASTER_PORT:-$((20000 + $$ % 10000))}"

set -m  # each process leads a group, which can be ended as one
for ((rank = 0; rank < number; ++rank)); do
  RANK=$rank NCCL_HOSTID="slamb-rank-$rank" "$@" > >(sed -u "s/^/[$rank] /" | tee -a "$work/output") 2>&1 </dev/null &
  processes+=($!) groups+=($!)
done
set +m

# Ends the others some time after the first failure.
failed=0 since=''
for ((left = number; left > 0;)); do
  left=0
  for ((rank = 0; rank < number; ++rank)); do
    process="${processes[rank]}"
    [[ "$process" == ended ]] && continue
    if kill -s 0 "$process" 2>/dev/null; then
      left=$((left + 1))
      continue
    fi
    status=0
    wait "$process" || status=$?
    processes[rank]=ended
    if ((status != 0)); then
      failed=$((failed + 1))
      since="${since:-$SECONDS}"
      echo "rank $rank: exit status $status"
    fi
  done
  if [[ -n "$since" ]] && ((left > 0 && SECONDS - since > grace)); then
    echo "$left ranks still run $grace seconds after the first failure, and are ended"
    break
  fi
  ((left == 0)) || sleep 0.1
done
sleep 0.2  # of the output
if ((failed > 0)) && refusal="$(grep -m 1 -o 'Duplicate GPU detected.*' "$work/output")"; then
  skip "NCCL refuses several ranks on one GPU: $refusal"
fi
((failed == 0))
