#!/usr/bin/env bash
# Shows blockd at work: installs what is missing, builds, starts a server of its own on free ports, runs
# `blockctl demo` against it, and stops it. Drawings and numbers go to build/demo, or to the folder $1.
# Where nvcc (on PATH or in /usr/local/cuda) and an NVIDIA GPU are, it builds for that GPU and runs on it.
set -euo pipefail
cd "$(dirname "$0")/.."

out="${1:-$PWD/build/demo}"
bin=build/quick/bin
mkdir -p "$out"

# Objects of ccache serve every build folder, and every clone.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros

deploy/install_packages.sh build
echo "packages: there after $SECONDS s"

# Prints what nvcc is to compile for: the first GPU here, or what every build is for where its kind is not
# known. Fails, and says why, where there is no GPU or no nvcc.
architectures() {
  local capability=
  if [[ "$(nvidia-smi -L 2>/dev/null)" == GPU* ]]; then
    capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)"
  elif [[ ! -e /dev/nvidia0 ]]; then
    echo "no NVIDIA GPU here" && return 1
  fi
  command -v nvcc >/dev/null || { echo "no nvcc on PATH or in /usr/local/cuda/bin" && return 1; }
  case "$capability" in
    9.0) echo 90a ;;  # with its products by warpgroups
    8.[0-9]) echo "${capability/./}" ;;
    [1-7].[0-9]) echo "no GPU of compute capability 8.0 or later, it is $capability" && return 1 ;;
    [0-9]*.[0-9]) echo 80 ;;  # which the driver translates for later ones
    *) echo '80;90a' ;;
  esac
}
# The preset `quick`: the programs alone, the solver's kernels as fast as in a release.
configure() { cmake --preset quick "$@" >"$out/configure.log" 2>&1; }

PATH="$PATH:/usr/local/cuda/bin"
if ! found="$(architectures)"; then
  echo "backend: the CPU, as there is $found"
  backend=cpu
elif configure -DBLOCKD_CUDA=ON "-DBLOCKD_CUDA_ARCHITECTURES=$found"; then
  echo "backend: CUDA, compiled for sm_${found//;/ and sm_} by $(command -v nvcc)"
  backend=cuda
else
  grep -m 5 -iE -A2 'error' "$out/configure.log" || true
  echo "backend: the CPU, as this nvcc does not work: $(command -v nvcc)"
  backend=cpu
fi
if [[ "$backend" == cpu ]] && ! configure -DBLOCKD_CUDA=OFF; then
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
sed -n 's/.* event=device //p' "$out/blockd.log"

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
