#!/bin/sh
# until_ended.sh PROGRAM CASE LAUNCHER…: runs LAUNCHER… PROGRAM CASE. Exits with 124 if its ranks have not all ended within a
# minute. Open MPI's mpirun itself sometimes hangs after MPI_Abort: if no rank has existed for ten seconds, it is ended, with a
# message.
program=$1 case=$2
shift 2
"$@" "$program" "$case" &
launcher=$!
began=0 looks=0 gone=0
while kill -0 "$launcher" 2>/dev/null; do
  sleep 0.1
  looks=$((looks + 1))
  if pgrep -f "^$program $case" >/dev/null; then
    began=1 gone=0
  else
    gone=$((gone + began))
  fi
  if [ "$gone" -ge 100 ]; then
    kill -KILL "$launcher"
    echo "all ranks have ended, but not the launcher"
    exit 0
  fi
  if [ "$looks" -ge 600 ]; then
    pkill -KILL -f "^$program $case"
    kill -KILL "$launcher"
    exit 124
  fi
done
wait "$launcher"
