#!/usr/bin/env bash
# clang-tidy over every .cc file of ours, as the build in the folder $1 compiles them. Further arguments
# are patterns: only files whose path contains one of them.
#
#   tests/lint/check_tidy.sh build/release [server/core ...]
set -euo pipefail
cd "$(dirname "$0")/../.."

build="${1:?usage: check_tidy.sh BUILD_FOLDER [PATTERN]...}"
shift
# The compilation database names each source once a target; generated ones lie in the build folder.
mapfile -t files < <(sed -n 's/^ *"file": "\(.*\.cc\)",\{0,1\}$/\1/p' "$build/compile_commands.json" |
  sort -u | grep -F "$PWD/" | grep -vF "$(realpath "$build")/")
if (($# > 0)); then
  patterns=()
  for pattern in "$@"; do patterns+=(-e "$pattern"); done
  mapfile -t files < <(printf '%s\n' "${files[@]}" | grep -F "${patterns[@]}")
fi

echo "clang-tidy: ${#files[@]} files"
# One file a process: each takes seconds, so that they share the processors well.
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p "$build" --quiet 2> >(grep -v 'warnings generated' >&2)
