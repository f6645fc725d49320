#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a while, from its corpus.
#
#   tests/fuzz/run.sh [--seconds=N] [--jobs=M] [TARGET]...
#
#   --seconds=N  for each target; 20
#   --jobs=M     so many targets at a time; 2
#   TARGET       npy, wire_scan, ...; all of them where none is named
#
# What is found new goes to build/fuzz/corpus/TARGET, and is where the next run begins. An input that fails
# is left in build/fuzz/found/TARGET. BLOCKD_BUILD_DIR names another folder than build/.
set -euo pipefail
cd "$(dirname "$0")/../.."

build="${BLOCKD_BUILD_DIR:-$PWD/build}/fuzz"
seconds=20
jobs=2
targets=()
for argument in "$@"; do
  case "$argument" in
    --seconds=*) seconds="${argument#*=}" ;;
    --jobs=*) jobs="${argument#*=}" ;;
    -*) echo "unknown option '$argument'; the script's head names them" >&2; exit 2 ;;
    *) targets+=("$argument") ;;
  esac
done
if ((${#targets[@]} == 0)); then
  for source in tests/fuzz/*_fuzz.cc; do targets+=("$(basename "$source" _fuzz.cc)"); done
fi

export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
mkdir -p "$build"
cmake --preset fuzz -B "$build" >"$build.configure.log" || { cat "$build.configure.log"; exit 1; }
cmake --build "$build" -j "$(nproc)" --target "${targets[@]/%/_fuzz}"

# run_target TARGET: fails, and says how to run the input again, where the target finds something.
run_target() {
  local target="$1" program="$build/tests/fuzz/$1_fuzz" log="$build/$1.log" options
  local found="$build/found/$1" grown="$build/corpus/$1" max_len=4096
  mkdir -p "$found" "$grown"
  # Nothing that takes more than linear time shows in short messages; this one counts what it copies.
  if [[ "$target" == stream_message ]]; then max_len=65536; fi
  # Entropic scheduling takes nine tenths of the time of the targets that are slow.
  options=("-max_total_time=$seconds" -timeout=10 -rss_limit_mb=4096 "-max_len=$max_len" -entropic=0
    -print_final_stats=1 "-artifact_prefix=$found/")
  if [[ -f "tests/fuzz/dictionaries/$target.dict" ]]; then
    options+=("-dict=tests/fuzz/dictionaries/$target.dict")
  fi
  if "$program" "${options[@]}" "$grown" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    echo "fuzz: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions"
    return
  fi
  tail -n 60 "$log"
  sed -n "s|^.*Test unit written to \(.*\)|fuzz: $target FAILED; again: $program \1|p" "$log"
  return 1
}

status=0
running=0
for target in "${targets[@]}"; do
  if ((running >= jobs)); then
    wait -n || status=1
    running=$((running - 1))
  fi
  run_target "$target" &
  running=$((running + 1))
done
while ((running > 0)); do
  wait -n || status=1
  running=$((running - 1))
done
exit "$status"
