#!/usr/bin/env bash
# Checks what deploy/kubernetes and deploy/prometheus say.
#
#   tests/kubernetes/run.sh BIN
#
# BIN is a folder with blockd and blockctl. What is used comes into build/kubernetes and is not
# installed: the packages of requirements.txt; the distribution's kubectl and promtool, unpacked.
set -euo pipefail
bin="$(cd "$1" && pwd)"
cd "$(dirname "$0")/../.."

tools="${BLOCKD_BUILD_DIR:-$PWD/build}/kubernetes"
venv="$tools/venv"
mkdir -p "$tools"

# unpack PACKAGE: the distribution's package, below $tools/PACKAGE. Fails where there is none.
unpack() {
  local folder="$tools/$1" package
  if [[ -d "$folder" ]]; then return; fi
  rm -rf "$folder.new"
  mkdir -p "$folder.new"
  (cd "$folder.new" && apt-get -qq download "$1") >"$tools/$1.log" 2>&1 || return
  for package in "$folder.new"/*.deb; do dpkg -x "$package" "$folder.new"; done
  rm "$folder.new"/*.deb
  mv "$folder.new" "$folder"
}

if ! cmp -s tests/kubernetes/requirements.txt "$venv/requirements.txt"; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" -q install --disable-pip-version-check --no-compile \
    -r tests/kubernetes/requirements.txt
  cp tests/kubernetes/requirements.txt "$venv/"
fi

# The lists of packages may be older than what they name.
if ! unpack prometheus; then
  as_root=()
  if ((EUID != 0)); then as_root=(sudo); fi
  "${as_root[@]}" apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update
  unpack prometheus || { cat "$tools/prometheus.log"; exit 1; }
fi

# A current kubectl, and the distribution's, where it has one: Ubuntu 24.04 has none.
kubectls="$venv/bin/kubectl"
if unpack kubernetes-client; then
  kubectls="$tools/kubernetes-client/usr/bin/kubectl:$kubectls"
else
  echo "kubernetes: the distribution has no kubectl; rendered with $kubectls alone"
fi

cd tests/kubernetes
BLOCKD_BIN="$bin" KUBECTLS="$kubectls" ENVOY="$venv/bin/envoy" \
  PROMTOOL="$tools/prometheus/usr/bin/promtool" PYTHONDONTWRITEBYTECODE=1 \
  "$venv/bin/python" -m unittest test_manifests test_router
