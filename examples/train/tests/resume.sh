#!/bin/bash
# resume.sh FOLDER COMMAND…: a run of slamb_train that is killed in the middle of a training and goes on prints what one that is not
# killed prints, but for the seconds. COMMAND starts slamb_train, as one process or as several: @processes stands for their number.
#
# Nothing here depends on time. The run that is killed has a thousand trainings, with seeds 1, 2, …: it cannot be done before it is
# killed, and that it was not is checked. The training in which the kill finds it has a checkpoint of all ranks and not its last one;
# should it be found between two trainings, it goes on and is killed again.
set -u
folder=$1
shift
rm -rf "$folder" && mkdir -p "$folder" || exit 1
settings=(--steps 120 --hash)

fail() {
  echo "$1"
  exit 1
}

# The last column of the table is of seconds.
report() { sed -E '/ %  /s/ +[0-9.]+$//' "$1"; }

# A process and all that it has started: ranks of mpirun are in groups of their own.
family() {
  echo "$1"
  for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do family "$child"; done
}

# The last step of which all ranks have a checkpoint in a folder; 0 without one.
anchor_step() {
  local step most=0
  for file in "$1"/rank0-step*.slamb; do
    step=${file##*-step}
    step=${step%.slamb}
    [ "$(ls "$1"/rank*-step"$step".slamb | wc -l)" = "$processes" ] && ((step > most)) && most=$step
  done
  echo "$most"
}

# Kills processes, and waits until none of them can write any more.
kill_all() {
  kill -KILL "$@" 2>/dev/null
  local process
  for process; do
    while grep -q '^State:[[:space:]]*[^ZX[:space:]]' /proc/"$process"/status 2>/dev/null; do sleep 0.02; done
  done
}

# kill_in_the_middle RUN OPTION…: kills a run that keeps checkpoints in RUN, and sets seed and step to where it was found.
kill_in_the_middle() {
  local run=$1 again=() started attempt last
  shift
  for ((attempt = 1; attempt <= 50; ++attempt)); do
    touch "$folder/begun"
    "${command[@]}" --checkpoint "$run" --checkpoint-every 10 --seeds 1000 "$@" "${again[@]}" \
      >"$folder/killed.txt" 2>&1 &
    started=$!
    until find "$run" -name 'rank*.slamb' -newer "$folder/begun" 2>/dev/null | grep -q .; do
      kill -0 "$started" 2>/dev/null || fail "the run ended before its first checkpoint: $(cat "$folder/killed.txt")"
      sleep 0.02
    done
    kill_all $(family "$started")
    wait "$started" 2>/dev/null
    [ $? = 137 ] || fail "the run was not killed: $(cat "$folder/killed.txt")"
    grep -q "final parameters" "$folder/killed.txt" && fail "the run that was killed had ended: $(cat "$folder/killed.txt")"
    last=$(ls -d "$run"/*-seed* | sort -V | tail -n 1)
    seed=${last##*-seed}
    step=$(anchor_step "$last")
    ((step > 0 && step < 120)) && return
    again=(--resume)
  done
  fail "in $attempt attempts the kill has not found the run within a training"
}

for chosen in "slamb 2 1" "zero_one_adam 2 1" "one_bit_lamb 2 2"; do
  read -r optimizer ranks shards <<<"$chosen"
  processes=$((ranks * shards))
  command=("${@/#@processes/$processes}")
  run=$folder/$optimizer
  these=("${settings[@]}" --ranks "$ranks" --shards "$shards" --optimizer "$optimizer")
  kill_in_the_middle "$run" "${these[@]}"
  echo "$optimizer, seed $seed was killed after step $step of 120"

  these+=(--seed "$seed" --seeds 2)
  checkpoints=(--checkpoint "$run" --checkpoint-every 10)
  "${command[@]}" "${these[@]}" "${checkpoints[@]}" >"$folder/again.txt" 2>&1
  [ $? = 2 ] && grep -q "has the checkpoints of another run; --resume goes on from them" "$folder/again.txt" ||
    fail "a second run in the same folder was not refused: $(cat "$folder/again.txt")"
  "${command[@]}" "${these[@]}" "${checkpoints[@]}" --resume --batch 128 >"$folder/other.txt" 2>&1
  [ $? = 2 ] && grep -q "was written with --batch 256, but this run has --batch 128" "$folder/other.txt" ||
    fail "other settings were not refused: $(cat "$folder/other.txt")"
  [ "$(anchor_step "$run/$optimizer-seed$seed")" = "$step" ] || fail "a run that was refused has changed the checkpoints"

  "${command[@]}" "${these[@]}" --csv "$folder/whole.csv" >"$folder/whole.txt" || fail "the run without checkpoints failed"
  "${command[@]}" "${these[@]}" "${checkpoints[@]}" --resume --csv "$folder/resumed.csv" >"$folder/resumed.txt" ||
    fail "the run that goes on failed"
  diff <(report "$folder/whole.txt") <(report "$folder/resumed.txt") || fail "the reports differ"
  cmp "$folder/whole.csv" "$folder/resumed.csv" || fail "the curves differ"
  grep -q "final parameters" "$folder/resumed.txt" || fail "there are no hashes"
  # What the comparison must reject.
  sed 's/final parameters ./final parameters x/' "$folder/resumed.txt" >"$folder/wrong.txt"
  diff <(report "$folder/whole.txt") <(report "$folder/wrong.txt") >/dev/null && fail "other parameters are not seen"
done
echo "the runs that were killed have gone on"
