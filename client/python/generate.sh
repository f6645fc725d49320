#!/usr/bin/env bash
# Generates the messages of blockd/v1 from proto/ with the distribution's protoc. They are checked in, so that
# nobody needs protoc to install the package.
#
#   client/python/generate.sh           writes them
#   client/python/generate.sh --check   fails where what is checked in differs
set -euo pipefail
cd "$(dirname "$0")"

out="$(mktemp -d)"
trap 'rm -rf "$out"' EXIT
protoc -I ../../proto --python_out="$out" --pyi_out="$out" blockd/v1/blockd.proto
# pyi_out repeats a comment's white space.
sed -i 's/[[:space:]]*$//' "$out"/blockd/v1/*
for file in blockd_pb2.py blockd_pb2.pyi; do
  if [[ "${1:-}" == --check ]]; then
    cmp "$out/blockd/v1/$file" "blockd/v1/$file" ||
      { echo "client/python/blockd/v1/$file: run client/python/generate.sh" >&2; exit 1; }
  else
    mkdir -p blockd/v1
    cp "$out/blockd/v1/$file" "blockd/v1/$file"
  fi
done
