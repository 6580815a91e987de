#!/bin/sh
# until_ended.sh PROGRAM CASE LAUNCHER…: runs LAUNCHER… PROGRAM CASE, whose ranks must all have ended within a minute, with exit
# status 124 if they have not. Open MPI's mpirun itself hangs now and then after MPI_Abort: once no rank has been there for ten
# seconds, it is ended, and that is said.
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
