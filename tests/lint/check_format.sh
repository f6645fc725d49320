#!/usr/bin/env bash
# Every C++ and proto file is as clang-format 14 writes it. With --fix, rewrites those that are not.
set -euo pipefail
cd "$(dirname "$0")/../.."

mode=(--dry-run --Werror)
if [[ "${1:-}" == --fix ]]; then mode=(-i); fi
find engine proto server client tests -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.proto' \) -print0 |
  xargs -0 -r -n 16 -P "$(nproc)" clang-format-14 "${mode[@]}"
