#!/bin/sh
# A million requests of four tenants with faults on the way, on the release build's server: README.md beside this.
#
#   tests/soak/run.sh [--requests=N] [--rss_percent=P] [BUILD_FOLDER]      (default: build/release)
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build/release
flags=""
for argument in "$@"; do
  case $argument in
    --requests=* | --rss_percent=*) flags="$flags $argument" ;;
    -*) echo "usage: $0 [--requests=N] [--rss_percent=P] [BUILD_FOLDER]" >&2; exit 2 ;;
    *) build=$argument ;;
  esac
done
if [ ! -f "$build/build.ninja" ]; then cmake --preset release -S "$root" -B "$build" >/dev/null; fi
cmake --build "$build" --target blockd soak
# shellcheck disable=SC2086  # flags without blanks
exec nice -n 5 "$build/tests/soak/soak" "--blockd=$build/bin/blockd" $flags
