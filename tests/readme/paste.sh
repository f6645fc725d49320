#!/usr/bin/env bash
# A shell into which tests/readme/run.py pastes: reads names of files with commands, a line each, and runs them
# one after another in this one shell. Writes to file descriptor $1 "LINE exit status N" for each command that
# failed, and "end" after each file.
set -m
_answers="$1" _status=0
shift

trap '_status=$?; echo "$LINENO exit status $_status" >&"$_answers"' ERR
while read -r _block; do
  # shellcheck disable=SC1090
  source "$_block" </dev/null
  echo end >&"$_answers"
done
trap - ERR
for _job in $(jobs -p); do kill "$_job"; done
wait
