#!/usr/bin/env bash
# What the Dockerfile's build stages do with the source: builds the programs and lists what the image
# is made of.
#
#   deploy/build_image.sh ROOT [CMAKE_OPTION]...
#
# ROOT is the image without the programs. Into /opt/blockd, for the image's /usr/local: bin/blockd,
# bin/blockctl, share/doc/blockd/LICENSE, share/sbom/blockd.spdx.json. Needs the environment of the
# Dockerfile's stage `tools`.
set -euo pipefail
cd "$(dirname "$0")/.."
root="$1"
shift
out=/opt/blockd

cmake --preset deploy "$@"
cmake --build --preset deploy -j "$(nproc)" --target blockd blockctl
cmake --install build/deploy --component programs --prefix "$out" --strip
install -D -m 644 LICENSE "$out/share/doc/blockd/LICENSE"

mkdir -p "$out/share/sbom"
version="$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' build/deploy/CMakeCache.txt)"
linked=()
if grep -q '^BLOCKD_CUDA:BOOL=ON' build/deploy/CMakeCache.txt; then linked=(--cuda=/opt/cuda); fi
/opt/sbom/bin/python deploy/write_sbom.py --root="$root" --version="$version" "${linked[@]}" \
  --out="$out/share/sbom/blockd.spdx.json"
