#!/usr/bin/env bash
# clang-tidy over every .cc file of ours, as the build in the folder $1 compiles them: several as one where
# it does that (the preset tidy), so that headers are read once for all of them; misc-unused-using-decls then
# says nothing, for it looks at main files only. Further arguments are patterns: only files whose path
# contains one of them.
#
#   tests/lint/check_tidy.sh build/tidy
#   tests/lint/check_tidy.sh build/release [server/core ...]
#
# A file that passed is not looked at again while its preprocessed text, its command and the checks stay
# what they were: the cache is a folder of empty files, $BLOCKD_TIDY_CACHE or ~/.cache/blockd-tidy.
set -euo pipefail
cd "$(dirname "$0")/../.."

cache="${BLOCKD_TIDY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/blockd-tidy}"

check_one() {  # check_one BUILD_FOLDER FILE
  local build="$1" file="$2" command key output
  local options=(--extra-arg=-Wno-unknown-warning-option)  # the compiler's own names of warnings
  # The first compilation of this file, without the compiler's launcher, its output and its target.
  command="$(grep -F -B1 "\"file\": \"$file\"" "$build/compile_commands.json" |
    sed -n 's/^ *"command": "\(.*\)",$/\1/p' | head -n 1 |
    sed 's/\\"/"/g; s,^[^ ]*ccache ,,; s, -o [^ ]* -c , -c ,')"
  key="$({
    clang-tidy-14 --version
    cat .clang-tidy client/.clang-tidy tests/.clang-tidy
    (cd "$build" && eval "$command -E -C") | sed "s,$PWD/,,g"
  } | sha256sum | cut -d ' ' -f 1)"
  if [[ -e "$cache/$key" ]]; then return; fi
  if [[ "$file" == "$build"/* ]]; then
    options+=("--config-file=$PWD/.clang-tidy"
      "--header-filter=(/include/blockd/|^$PWD/)(engine|server|client|tests)/")
    # What .clang-tidy says in these folders.
    if [[ "$file" == "$build"/@(client|tests)/* ]]; then options+=("--checks=-clang-analyzer-*"); fi
  fi
  if ! output="$(clang-tidy-14 -p "$build" --quiet "${options[@]}" "$file" 2>&1)"; then
    echo "$output"
    return 1
  fi
  touch "$cache/$key"
}

if [[ "${1:-}" == --one ]]; then
  check_one "$2" "$3"
  exit
fi

build="$(realpath "${1:?usage: check_tidy.sh BUILD_FOLDER [PATTERN]...}")"
shift
mkdir -p "$cache"
# The compilation database names a source once a target; generated ones lie in the build folder, and so
# do those that include several of ours.
mapfile -t files < <(
  sed -n 's/^ *"file": "\(.*\.\(cc\|cxx\)\)",\{0,1\}$/\1/p' "$build/compile_commands.json" | sort -u |
    while IFS= read -r file; do
      if [[ "$file" == "$build"/* ]]; then
        grep -F "\"$PWD/" "$file" | grep -qvF "\"$build/" || continue
      fi
      echo "$file"
    done |
    # Unrolled templates for every block size: the analyzer takes longer than anybody waits.
    grep -v 'engine/cpu/kernels/kernels_')
if (($# > 0)); then
  patterns=()
  for pattern in "$@"; do patterns+=(-e "$pattern"); done
  mapfile -t files < <(printf '%s\n' "${files[@]}" | grep -F "${patterns[@]}")
fi

echo "clang-tidy: ${#files[@]} files"
# One file a process: each takes seconds, so that they share the processors well.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" "$0" --one "$build"
