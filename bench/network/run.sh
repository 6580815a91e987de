#!/usr/bin/env bash
# Runs slamb_bench_mpi, or a program of torch.distributed, over links of limited bandwidth, all on this machine: every rank in a
# network namespace of its own, joined by veth pairs to a bridge in another. Needs root, ip and tc of iproute2, and Open MPI for
# programs of MPI.
#
#   bash bench/network/run.sh [--rates "100mbit 1gbit 10gbit unlimited"] [--ranks 4] [--delay MS] [--congestion NAME]
#                             [--launcher mpirun] [--out DIR] [--program PATH] [-- options of the program]
#   bash bench/network/run.sh --launcher environment --program "$(command -v python3)" -- train.py
#
#   --rates    to which each rank's link is limited in each direction (tc's token bucket): a whole number of bit, kbit, mbit
#              or gbit a second, or unlimited
#   --ranks    how many, in [2, 64]
#   --delay    milliseconds from rank to rank (tc's netem); left out, and said to be, where the kernel has none
#   --congestion  TCP's congestion control between ranks, one that the kernel has; by default cubic where it is there, Linux's
#              own, for bbr, which some machines have set instead, reaches a fifth less over links with hardly any latency
#   --launcher  mpirun, or environment: starts the program on each rank with the variables that torch.distributed reads (RANK,
#              WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), and GLOO_SOCKET_IFNAME
#   --out      a folder for slamb_bench_mpi's JSON documents, RATE.json
#   --program  slamb_bench_mpi; build/release/bin/slamb_bench_mpi by default
#
# The busiest second of any link is printed beside each rate, by the counters of the interfaces. The namespaces, all in them,
# and what runs there end with this script; interfaces of the machine are left alone. Exit status: 0; 1 for what went wrong at
# work; 2 for a wrong option, or where something that is needed is not there.
set -euo pipefail

refuse() {
  echo "run.sh: $*" >&2
  exit 2
}

rates="100mbit 1gbit 10gbit unlimited"
ranks=4
delay=0
congestion=""
launcher_name=mpirun
out=""
program=""
options=()

while (($# > 0)); do
  case "$1" in
    --rates | --ranks | --delay | --congestion | --launcher | --out | --program)
      (($# >= 2)) || refuse "$1 needs a value"
      name="${1#--}"
      [[ "$name" == launcher ]] && name=launcher_name
      printf -v "$name" '%s' "$2"
      shift 2
      ;;
    --)
      shift
      options=("$@")
      break
      ;;
    -h | --help)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) refuse "'$1' is not an option; expected --rates, --ranks, --delay, --congestion, --launcher, --out, --program, or -- and options of the program" ;;
  esac
done

# bits_of RATE: a second; 0 for unlimited.
bits_of() {
  local number
  [[ "$1" == unlimited ]] && echo 0 && return
  [[ "$1" =~ ^([1-9][0-9]{0,8})(bit|kbit|mbit|gbit)$ ]] ||
    refuse "--rates: '$1' is neither unlimited nor a whole number with bit, kbit, mbit or gbit after it"
  number="${BASH_REMATCH[1]}"
  case "${BASH_REMATCH[2]}" in
    bit) echo "$number" ;;
    kbit) echo "$((number * 1000))" ;;
    mbit) echo "$((number * 1000000))" ;;
    gbit) echo "$((number * 1000000000))" ;;
  esac
}
read -ra rate_list <<<"$rates"
((${#rate_list[@]} > 0)) || refuse "--rates: the list is empty; expected for example \"100mbit 1gbit unlimited\""
bits_list=()
for rate in "${rate_list[@]}"; do
  bits="$(bits_of "$rate")" # on its own: a refusal ends the script
  ((bits == 0 || (bits >= 1000000 && bits <= 1000000000000))) || refuse "--rates: '$rate' is not in [1mbit, 1000gbit]"
  bits_list+=("$bits")
done
[[ "$ranks" =~ ^([2-9]|[1-5][0-9]|6[0-4])$ ]] || refuse "--ranks: '$ranks' is not an integer in [2, 64]"
[[ "$launcher_name" =~ ^(mpirun|environment)$ ]] || refuse "--launcher: '$launcher_name' is neither mpirun nor environment"
if [[ "$launcher_name" == environment ]]; then
  [[ -n "$program" ]] || refuse "--launcher environment needs --program"
  [[ -z "$out" ]] || refuse "--out is for slamb_bench_mpi; give the program its own options behind --"
fi
[[ "$delay" =~ ^[0-9]{1,4}(\.[0-9]{1,3})?$ ]] || refuse "--delay: '$delay' is not a number of milliseconds in [0, 9999]"

[[ -r /proc/sys/net/ipv4/tcp_available_congestion_control ]] || refuse "network namespaces and tc need Linux"
read -ra known </proc/sys/net/ipv4/tcp_available_congestion_control
if [[ -z "$congestion" ]]; then
  congestion=cubic
  [[ " ${known[*]} " == *" cubic "* ]] || congestion="$(cat /proc/sys/net/ipv4/tcp_congestion_control)"
fi
[[ "$congestion" =~ ^[a-z0-9_-]+$ && " ${known[*]} " == *" $congestion "* ]] ||
  refuse "--congestion: the kernel has no '$congestion'; it has: ${known[*]}"

((EUID == 0)) || refuse "network namespaces and tc need root: sudo bash bench/network/run.sh"
tools=(ip tc unshare awk)
[[ "$launcher_name" == environment ]] || tools+=(mpirun)
for tool in "${tools[@]}"; do
  command -v "$tool" >/dev/null ||
    refuse "'$tool' was not found; on Debian or Ubuntu: apt install iproute2 openmpi-bin util-linux mawk"
done
if [[ "$launcher_name" == mpirun ]]; then
  mpirun --version 2>/dev/null | grep -q 'Open MPI' || refuse "mpirun is not Open MPI's, but this script needs its launcher"
fi

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
program="${program:-$root/build/release/bin/slamb_bench_mpi}"
[[ -f "$program" && -x "$program" ]] ||
  refuse "$program does not exist, or is not executable; build it: cmake --preset release && ninja -C build/release slamb_bench_mpi"
program="$(realpath -s "$program")" # a virtual environment is found by the link to its Python
if [[ -n "$out" ]]; then
  { mkdir -p "$out" 2>/dev/null && [[ -w "$out" ]]; } || refuse "--out: $out is not a writable folder"
  out="$(realpath "$out")"
fi

# -------------------------------------------------------------------------------------------- what is made, and unmade

prefix="slamb$$"
made=()   # namespaces
folder="" # for the agent, the samples and Open MPI's sessions
launcher=""

# Everything that runs in the namespaces that were made here, the launcher first, which ends its ranks in order.
end_processes() {
  local name pids
  if [[ -n "$launcher" ]]; then
    kill -TERM "$launcher" 2>/dev/null || true
    for _ in {1..50}; do # 5 s
      kill -0 "$launcher" 2>/dev/null || break
      sleep 0.1
    done
  fi
  for _ in 1 2 3 4 5; do
    pids=""
    for name in ${made[@]+"${made[@]}"}; do pids+=" $(ip netns pids "$name" 2>/dev/null | tr '\n' ' ')"; done
    [[ "$pids" =~ [0-9] ]] || break
    # shellcheck disable=SC2086 # a list of numbers
    kill -KILL $pids 2>/dev/null || true
    sleep 0.1
  done
  wait 2>/dev/null || true
  launcher=""
}

clean_up() {
  local status=$? name
  set +e
  trap '' INT TERM HUP # once begun, it ends
  end_processes
  for name in ${made[@]+"${made[@]}"}; do ip netns delete "$name" 2>/dev/null; done # and with it its ends of links, and the others
  [[ -n "$folder" ]] && rm -rf "$folder"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

folder="$(mktemp -d)"

make_namespace() {
  local said
  [[ ! -e "/run/netns/$1" ]] || refuse "the namespace $1 exists already, from a run that was killed; delete it: ip netns delete $1"
  made+=("$1") # first, so that no signal comes between
  said="$(ip netns add "$1" 2>&1)" || refuse "may not make a network namespace, for example in a container without CAP_SYS_ADMIN: $said"
  ip -n "$1" link set dev lo up
}

net="$prefix-net"
make_namespace "$net"
ip -n "$net" link add br0 type bridge || refuse "the kernel makes no bridge; try: modprobe bridge"
ip -n "$net" address add 10.0.0.254/24 dev br0
ip -n "$net" link set dev br0 up
for ((i = 0; i < ranks; ++i)); do
  make_namespace "$prefix-$i"
  ip -n "$net" link add "port$i" type veth peer name eth0 netns "$prefix-$i" || refuse "the kernel makes no veth pair; try: modprobe veth"
  ip -n "$net" link set dev "port$i" master br0 up
  ip -n "$prefix-$i" address add "10.0.0.$((i + 1))/24" dev eth0
  ip -n "$prefix-$i" link set dev eth0 up
  ip -n "$prefix-$i" route change 10.0.0.0/24 dev eth0 proto kernel scope link src "10.0.0.$((i + 1))" congctl "$congestion"
  echo "10.0.0.$((i + 1)) slots=1" >>"$folder/hosts"
done

# In the place of ssh: what Open MPI starts on the host 10.0.0.(i + 1) starts in namespace i, as a machine with a name of its own.
cat >"$folder/agent" <<AGENT
#!/usr/bin/env bash
i=\$((\${1##*.} - 1))
shift
exec ip netns exec "$prefix-\$i" unshare --uts bash -c 'hostname "\$1" && exec bash -c "\$2"' agent "slamb-rank-\$i" "\$*"
AGENT
chmod +x "$folder/agent"

# In the place of mpirun: starts a program on every rank, and ends when all have ended or one has failed.
cat >"$folder/start" <<START
#!/usr/bin/env bash
trap 'kill \$(jobs -p) 2>/dev/null; wait; exit 143' TERM
for ((i = 0; i < $ranks; ++i)); do
  ip netns exec "$prefix-\$i" env RANK="\$i" WORLD_SIZE=$ranks LOCAL_RANK=0 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 \
    GLOO_SOCKET_IFNAME=eth0 "\$@" &
done
for ((i = 0; i < $ranks; ++i)); do
  wait -n || { status=\$?; kill \$(jobs -p) 2>/dev/null; exit "\$status"; }
done
START
chmod +x "$folder/start"

# Whether the kernel has netem, tried where it matters to nobody.
if [[ ! "$delay" =~ ^[0.]+$ ]] && ! tc -n "$net" qdisc add dev lo root netem delay 1ms 2>"$folder/said"; then
  echo "run.sh: no delay: the kernel has no netem ($(tr '\n' ' ' <"$folder/said"))" >&2
  delay=0
fi
tc -n "$net" qdisc del dev lo root 2>/dev/null || true

# limit NAMESPACE DEVICE BITS DELAY: what leaves through the device.
limit() {
  local parent=(root)
  tc -n "$1" qdisc del dev "$2" root 2>/dev/null || true
  if (($3 > 0)); then
    local burst=$(($3 / 8 / 250)) # 4 ms; no less than half of a packet that the kernel has put together
    ((burst >= 32768)) || burst=32768
    tc -n "$1" qdisc add dev "$2" root handle 1: tbf rate "$3bit" burst "$burst" latency 50ms
    parent=(parent 1:1)
  fi
  [[ "$4" =~ ^[0.]+$ ]] || tc -n "$1" qdisc add dev "$2" "${parent[@]}" handle 10: netem delay "$4ms" limit 100000
}

# Writes the counters of all links once a second: time, and bytes that came in through each port, then out.
sample() {
  # shellcheck disable=SC2016 # the inner shell's
  exec ip netns exec "$net" bash -c '
    while :; do
      printf "%s" "$EPOCHREALTIME"
      for ((i = 0; i < $1; ++i)); do
        read -r in <"/sys/class/net/port$i/statistics/rx_bytes"
        read -r out <"/sys/class/net/port$i/statistics/tx_bytes"
        printf " %s %s" "$in" "$out"
      done
      echo
      sleep 1
    done' sample "$ranks" >"$folder/samples"
}

# Mbit/s of the busiest link and direction between two samples.
busiest() {
  awk 'NR > 1 { for (i = 2; i <= NF; ++i) { x = ($i - last[i]) / ($1 - last[1]); if (x > most) most = x } }
       { for (i = 1; i <= NF; ++i) last[i] = $i }
       END { printf "%.1f", most * 8e-6 }' "$folder/samples"
}

# ------------------------------------------------------------------------------------------------------- the measurement

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
subnet=10.0.0.0/24
launch=(mpirun -n "$ranks" --hostfile "$folder/hosts" --map-by node --bind-to none
  --mca plm rsh --mca plm_rsh_agent "$folder/agent" --mca plm_rsh_no_tree_spawn 1
  --mca oob_tcp_if_include "$subnet" --mca btl_tcp_if_include "$subnet" --mca pml ob1 --mca btl "tcp,self"
  --mca mpi_yield_when_idle 1 --mca orte_tmpdir_base "$folder")
in_net=(ip netns exec "$net")
[[ "$launcher_name" == mpirun ]] || launch=("$folder/start") in_net=() # which enters the ranks' namespaces itself

for index in "${!rate_list[@]}"; do
  rate="${rate_list[$index]}" bits="${bits_list[$index]}"
  for ((i = 0; i < ranks; ++i)); do
    limit "$prefix-$i" eth0 "$bits" "$delay"
    limit "$net" "port$i" "$bits" 0
  done
  given=()
  if [[ "$launcher_name" == mpirun ]]; then
    ((bits == 0)) || given+=(--link-bandwidth "$bits")
    [[ "$delay" =~ ^[0.]+$ ]] || given+=(--latency "$(awk "BEGIN { print $delay / 1000 }")")
    [[ -z "$out" ]] || given+=(--json "$out/$rate.json")
  fi

  echo "== $rate, $ranks ranks, TCP: $congestion"
  sample &
  disown # nothing is said of how it ends
  ${in_net[@]+"${in_net[@]}"} "${launch[@]}" "$program" ${given[@]+"${given[@]}"} ${options[@]+"${options[@]}"} </dev/null &
  launcher=$!
  status=0
  wait "$launcher" || status=$?
  launcher=""
  sleep 1.1 # for the last sample
  end_processes
  if ((status != 0)); then
    echo "run.sh: $program ended with status $status at $rate" >&2
    exit $((status == 2 ? 2 : 1))
  fi
  most="$(busiest)"
  echo "the busiest second of a link, in one direction: $most Mbit/s"
  # A second may hold a bucket more than the rate; counters leave out headers of packets that the kernel has put together.
  if ((bits > 0)) && awk "BEGIN { exit !($most * 1e6 > 1.05 * $bits + 8 * 32768) }"; then
    echo "run.sh: the limit of $rate did not hold: $most Mbit/s were measured" >&2
    exit 1
  fi
  echo
done
