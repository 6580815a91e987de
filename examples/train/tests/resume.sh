#!/bin/bash
# resume.sh FOLDER COMMAND…: a run of slamb_train that is killed and goes on prints what one that is not killed prints, but for the
# seconds. COMMAND starts slamb_train, as one process or as several. Wherever the kill finds it, the result is the same.
set -u
folder=$1
shift
rm -rf "$folder" && mkdir -p "$folder" || exit 1
settings=(--ranks 2 --seeds 2 --steps 120 --optimizer slamb,zero_one_adam --hash)
checkpoints=(--checkpoint "$folder/run" --checkpoint-every 10)

fail() {
  echo "$1"
  exit 1
}

# The last column of the table is of seconds.
report() { sed -E '/ %  /s/ +[0-9.]+$//' "$1"; }

"$@" "${settings[@]}" --csv "$folder/whole.csv" >"$folder/whole.txt" || fail "the run without checkpoints failed"

# A process and all that it has started: ranks of mpirun are in groups of their own.
family() {
  echo "$1"
  for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do family "$child"; done
}

"$@" "${settings[@]}" "${checkpoints[@]}" >"$folder/killed.txt" 2>&1 &
started=$!
for ((i = 0; i < 600; ++i)); do
  compgen -G "$folder/run/zero_one_adam-seed1/rank*-step*0.slamb" >/dev/null && break
  kill -0 "$started" 2>/dev/null || break
  sleep 0.1
done
kill -KILL $(family "$started") 2>/dev/null
wait "$started" 2>/dev/null
compgen -G "$folder/run/slamb-seed2/rank1-step120.slamb" >/dev/null || fail "there are no checkpoints: $(cat "$folder/killed.txt")"

"$@" "${settings[@]}" "${checkpoints[@]}" >"$folder/again.txt" 2>&1
[ $? = 2 ] && grep -q "has the checkpoints of another run; --resume goes on from them" "$folder/again.txt" ||
  fail "a second run in the same folder was not refused: $(cat "$folder/again.txt")"
"$@" "${settings[@]}" "${checkpoints[@]}" --resume --batch 128 >"$folder/other.txt" 2>&1
[ $? = 2 ] && grep -q "was written with --batch 256, but this run has --batch 128" "$folder/other.txt" ||
  fail "other settings were not refused: $(cat "$folder/other.txt")"

"$@" "${settings[@]}" "${checkpoints[@]}" --resume --csv "$folder/resumed.csv" >"$folder/resumed.txt" ||
  fail "the run that goes on failed"
diff <(report "$folder/whole.txt") <(report "$folder/resumed.txt") || fail "the reports differ"
cmp "$folder/whole.csv" "$folder/resumed.csv" || fail "the curves differ"
grep -q "final parameters" "$folder/resumed.txt" || fail "there are no hashes"
# What the comparison must reject.
sed 's/final parameters ./final parameters x/' "$folder/resumed.txt" >"$folder/wrong.txt"
diff <(report "$folder/whole.txt") <(report "$folder/wrong.txt") >/dev/null && fail "other parameters are not seen"
echo "the run that was killed has gone on"
