#!/bin/sh
# Prints the table of all benchmarks: the engine against CHOLMOD and this machine's ceilings, what callers of one
# server notice of each other, then the service over loopback against a server process of its own.
#
#   tests/bench/run.sh [--json] [--quick] [--envoy=PROGRAM] [BUILD_FOLDER]      (default: build/release)
#
# --json keeps the results in tests/bench/results, from where tests/lint/write_docs.py puts them into the
# documentation.
#
# --envoy: measures calls through Envoy beside direct ones, and nothing else. `tests/run.sh router` leaves its
# program below build/router.
#
# Nothing else should run on the machine meanwhile.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build/release
json="" quick="" envoy=""
commit=$(git -C "$root" describe --always --dirty --abbrev=12)
for argument in "$@"; do
  case $argument in
    --json) json=$root/tests/bench/results ;;
    --quick) quick=--quick ;;
    --envoy=*) envoy=${argument#*=} ;;
    -*) echo "usage: $0 [--json] [--quick] [--envoy=PROGRAM] [BUILD_FOLDER]" >&2; exit 2 ;;
    *) build=$argument ;;
  esac
done

# Or OpenBLAS's idle threads spin on into the time of whatever is measured next.
export OPENBLAS_THREAD_TIMEOUT=4

scratch=$(mktemp -d)
server="" router=""
stop() {
  for program in $router $server; do
    kill "$program" 2>/dev/null || true
    wait "$program" 2>/dev/null || true
  done
  rm -rf "$scratch"
}
trap stop EXIT
trap 'exit 130' INT TERM

# measure PROGRAM RESULT [FLAG]...
measure() {
  program=$build/tests/bench/$1 result=$2
  shift 2
  if [ -n "$json" ]; then
    set -- "$@" "--json=$json/$result.json" "--commit=$commit" "--command=tests/bench/run.sh --json${envoy:+ --envoy=envoy}"
  fi
  "$program" "$@" $quick
}

if [ -z "$envoy" ]; then
  measure cpu_bench cpu
  measure accuracy_bench accuracy_cpu --backend=cpu
  measure sharing_bench sharing_cpu --backend=cpu --blockd="$build/bin/blockd"
fi

"$build/bin/blockd" --port=0 --metrics_port=-1 --port_file="$scratch/port" --log_level=error &
server=$!
tries=0
until [ -s "$scratch/port" ]; do
  tries=$((tries + 1))
  if [ $tries -gt 300 ] || ! kill -0 "$server" 2>/dev/null; then
    echo "$0: the server did not start" >&2
    exit 1
  fi
  sleep 0.1
done
port=$(sed -n 's/^grpc=//p' "$scratch/port")
if [ -z "$envoy" ]; then
  measure service_bench service --noheader --target="127.0.0.1:$port"
  exit
fi
sed -e "s#/etc/envoy#$scratch#; s#0\.0\.0\.0#127.0.0.1#" "$root/deploy/router/envoy.yaml" >"$scratch/envoy.yaml"
sed -e "s#type: STRICT_DNS#type: STATIC#; /dns_refresh_rate/d; /respect_dns_ttl/d" \
  -e "s#address: blockd-pods, port_value: 7117#address: 127.0.0.1, port_value: $port#" \
  "$root/deploy/router/clusters.yaml" >"$scratch/clusters.yaml"
"$envoy" -c "$scratch/envoy.yaml" --concurrency 2 --disable-hot-restart -l error &
router=$!
measure service_bench service_router --target="127.0.0.1:$port" --router=127.0.0.1:7117
