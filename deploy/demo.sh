#!/usr/bin/env bash
# Shows blockd at work: installs what is missing, builds, starts a server of its own on free ports, runs
# `blockctl demo` against it, and stops it. Drawings and numbers go to build/demo, or to the folder $1.
set -euo pipefail
cd "$(dirname "$0")/.."

out="${1:-$PWD/build/demo}"
bin=build/quick/bin
mkdir -p "$out"

# Objects of ccache serve every build folder, and every clone.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros

deploy/install_packages.sh build
echo "packages: there after $SECONDS s"

# The preset `quick`: the programs alone, the solver's kernels as fast as in a release.
if ! cmake --preset quick >"$out/configure.log" 2>&1; then
  cat "$out/configure.log"
  exit 1
fi
NINJA_STATUS="[%f of %t, %e s] " \
  cmake --build --preset quick -j "$(nproc)" --target blockd blockctl
echo "programs: built after $SECONDS s"

server=
stop() {
  if [[ -n "$server" ]]; then kill -KILL "$server" 2>/dev/null || true; fi
}
trap stop EXIT

rm -f "$out/ports"
"$bin/blockd" --port=0 --metrics_port=0 --port_file="$out/ports" 2>"$out/blockd.log" &
server=$!
for ((attempt = 0; attempt < 600; ++attempt)); do
  if [[ -s "$out/ports" ]] || ! kill -0 "$server" 2>/dev/null; then break; fi
  sleep 0.1
done
if [[ ! -s "$out/ports" ]]; then
  echo "blockd did not start:"
  cat "$out/blockd.log"
  exit 1
fi
grpc="$(sed -n 's/^grpc=//p' "$out/ports")"
metrics="$(sed -n 's/^metrics=//p' "$out/ports")"
echo "blockd serves on 127.0.0.1:$grpc, metrics on 127.0.0.1:$metrics, log in $out/blockd.log"

"$bin/blockctl" --server="127.0.0.1:$grpc" demo --metrics="127.0.0.1:$metrics" --out="$out"

kill -TERM "$server"
status=0
wait "$server" || status=$?
server=
if ((status != 0)); then
  echo "blockd ended with status $status:"
  tail -n 20 "$out/blockd.log"
  exit 1
fi
echo "blockd drained and ended with status 0"
