#!/usr/bin/env bash
# bash network.sh RUN_SH            runs it as a user who is not root
# bash network.sh RUN_SH PROGRAM    runs it over limited links, then again and ends it early: nothing of it may remain;
#                                   77 if this user may make no network namespaces, or SLAMB_TEST_NETWORK is not 1
set -euo pipefail
script="$1"
if (($# > 1)) && [[ "${SLAMB_TEST_NETWORK:-}" != 1 ]]; then
  echo "network.sh: makes network namespaces, and so is run only where SLAMB_TEST_NETWORK=1"
  exit 77
fi

if (($# == 1)); then
  # Passes the script by standard input, because other users may not be allowed to read the folder.
  ((EUID != 0)) && exec bash "$script"
  exec setpriv --reuid 65534 --regid 65534 --clear-groups bash -s <"$script"
fi

fail() {
  echo "network.sh: $*" >&2
  exit 1
}
options=(--ranks 2 --rates 100mbit --program "$2" --)
said="$(mktemp)"
run=""
trap 'rm -f "$said"; [[ -z "$run" ]] || kill -TERM "$run" 2>/dev/null || true' EXIT

status=0
bash "$script" "${options[@]}" --parameters 100000 --steps 1 --optimizer one_bit_adam >"$said" 2>&1 || status=$?
cat "$said"
if ((status == 2)) && grep -Eq "need root|may not make|was not found|does not exist|the kernel makes no|is not Open MPI" "$said"; then exit 77; fi
((status == 0)) || fail "ended with status $status, expected 0"
grep -Eq "^one_bit_adam +[0-9,]+ +2\.00 " "$said" || fail "no line of one_bit_adam"
grep -q "^the busiest second of a link" "$said" || fail "no word on the links"

# Ranks of torch.distributed; the first that fails ends the others.
options_of_ranks=(--ranks 2 --rates 100mbit --launcher environment --program "$(command -v bash)" --)
# shellcheck disable=SC2016 # the inner shell's
bash "$script" "${options_of_ranks[@]}" -c 'echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR, $GLOO_SOCKET_IFNAME"' >"$said" 2>&1 ||
  fail "ended with status $? with --launcher environment: $(cat "$said")"
for rank in 0 1; do
  grep -q "^rank $rank of 2 at 10.0.0.1, eth0$" "$said" || fail "no rank $rank with --launcher environment: $(cat "$said")"
done
status=0
# shellcheck disable=SC2016
bash "$script" "${options_of_ranks[@]}" -c '((RANK == 0)) && exit 5; sleep 100' >"$said" 2>&1 || status=$?
((status == 1)) || fail "ended with status $status, expected 1 where a rank fails: $(cat "$said")"

# left PID: the remaining namespaces and processes of the run with that number.
left() { ip netns list | awk -v own="^slamb$1-" '$1 ~ own { print "namespace " $1 }'; }
: >"$said"
bash "$script" "${options[@]}" --parameters 100000 --seconds 600 >"$said" 2>&1 &
run=$!
for ((i = 0; i < 600; ++i)); do
  grep -q "slamb_bench_mpi: lamb" "$said" && break
  sleep 0.1
done
[[ -n "$(left "$run")" ]] || fail "made no namespace within a minute: $(cat "$said")"
ranks=()
for name in $(left "$run" | cut -d' ' -f2); do mapfile -t -O "${#ranks[@]}" ranks < <(ip netns pids "$name"); done
((${#ranks[@]} >= 2)) || fail "runs ${#ranks[@]} processes, expected the ranks"
kill -TERM "$run"
status=0
wait "$run" || status=$?
((status == 143)) || fail "ended with status $status, expected 143: $(cat "$said")"
[[ -z "$(left "$run")" ]] || fail "left behind: $(left "$run")"
for pid in "${ranks[@]}"; do
  if [[ "$(ps -o stat= -p "$pid" || true)" =~ ^[^Z] ]]; then fail "left process $pid behind: $(ps -o args= -p "$pid")"; fi
done
