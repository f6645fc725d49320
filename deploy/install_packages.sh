#!/usr/bin/env bash
# Installs the distribution's packages that blockd needs: the one list, used by the demo, the tests,
# CI and the Dockerfile alike. Debian 12 and 13, and Ubuntu 24.04.
#
#   deploy/install_packages.sh [build | test | bench | lint | fuzz | router | kube | python | hip | images | sbom |
#     runtime | runtime-hip]...
#
# Without arguments: build test bench lint. Needs root or sudo only if something is missing; what is
# installed already is left as it is.
set -euo pipefail

# To build the server, the client and the engine.
build=(build-essential cmake ninja-build pkg-config ccache
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libssl-dev
  libabsl-dev prometheus-cpp-dev libmicrohttpd-dev libopenblas-pthread-dev
  libgoogle-perftools-dev)
# To build and run the tests.
test=(libgtest-dev libgmock-dev libboost-context-dev zlib1g-dev openssl python3)
# To build the benchmarks; CHOLMOD, of SuiteSparse, is what they compare with.
bench=(libbenchmark-dev libsuitesparse-dev)
# To check the style. The version is fixed: each formats a little differently.
lint=(clang-format-14 clang-tidy-14 shellcheck python3)
# To fuzz. The runtime of Clang is a package of its own: Debian 12 | Ubuntu 24.04.
fuzz=(clang 'libclang-rt-dev|libclang-rt-18-dev')
# To check the Kubernetes manifests.
kube=(python3-venv openssl)
# To test behind routers: Envoy comes from PyPI, below build/.
router=(haproxy python3-venv)
# To build, check and test the Python client.
python=(python3-grpcio python3-protobuf python3-numpy python3-scipy python3-statsmodels python3-pytest python3-build flit
  python3-pip python3-venv mypy protobuf-compiler openssl)
# To compile the GPU backend for AMD.
hip=(hipcc libamdhip64-dev)
# To build and prove the images without a container engine's daemon.
images=(buildah debootstrap podman runc iproute2 python3-venv)
# To list what an image is made of.
sbom=(python3-venv)
# To run what was built. Debian 12 | Ubuntu 24.04 | Debian 13: the first name that apt knows is taken.
runtime=('libgrpc++1.51|libgrpc++1.51t64' 'libprotobuf32|libprotobuf32t64' 'libssl3|libssl3t64'
  'libabsl20220623|libabsl20220623t64|libabsl20240722' 'libmicrohttpd12|libmicrohttpd12t64'
  libprometheus-cpp-core1.0 libopenblas0-pthread 'libtcmalloc-minimal4|libtcmalloc-minimal4t64')
# And with the GPU backend for AMD.
runtime_hip=(libamdhip64-5)

die() {
  echo "install_packages.sh: $*" >&2
  exit 1
}

# True if dpkg has the package, configured.
installed() {
  [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

# Both take alternatives: names between bars.
any_installed() {
  local name
  for name in ${1//|/ }; do
    if installed "$name"; then return; fi
  done
  return 1
}
first_known() {
  local name
  for name in ${1//|/ }; do
    if apt-cache show "$name" >/dev/null 2>&1; then
      echo "$name"
      return
    fi
  done
  die "apt knows none of: ${1//|/, }"
}

command -v apt-get >/dev/null || die "needs apt (Debian 12 or Ubuntu 24.04)"

groups=("$@")
if ((${#groups[@]} == 0)); then groups=(build test bench lint); fi
wanted=()
for group in "${groups[@]}"; do
  case "$group" in
    build) wanted+=("${build[@]}") ;;
    test) wanted+=("${test[@]}") ;;
    bench) wanted+=("${bench[@]}") ;;
    lint) wanted+=("${lint[@]}") ;;
    fuzz) wanted+=("${fuzz[@]}") ;;
    kube) wanted+=("${kube[@]}") ;;
    router) wanted+=("${router[@]}") ;;
    python) wanted+=("${python[@]}") ;;
    hip) wanted+=("${hip[@]}") ;;
    images) wanted+=("${images[@]}") ;;
    sbom) wanted+=("${sbom[@]}") ;;
    runtime) wanted+=("${runtime[@]}") ;;
    runtime-hip) wanted+=("${runtime_hip[@]}") ;;
    *) die "unknown group '$group'; the script's head names them" ;;
  esac
done

to_install=()
for names in "${wanted[@]}"; do
  if ! any_installed "$names"; then to_install+=("$names"); fi
done
if ((${#to_install[@]} == 0)); then exit 0; fi

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || die "packages are missing: run it as root, or install sudo"
  as_root=(sudo)
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq
  -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
echo "packages: asking for the distribution's list"
"${apt[@]}" update
for i in "${!to_install[@]}"; do
  to_install[i]="$(first_known "${to_install[i]}")"
done
echo "packages: installing ${to_install[*]}"
"${apt[@]}" install -y --no-install-recommends "${to_install[@]}"
