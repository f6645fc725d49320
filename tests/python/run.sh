#!/usr/bin/env bash
# Builds the Python client's wheel and source archive with the distribution's tools, installs the wheel beside
# the distribution's packages, checks its types, and tests it and its examples against a server.
#
#   tests/python/run.sh PROGRAMS FOLDER     PROGRAMS has blockd; FOLDER gets the results
set -euo pipefail
cd "$(dirname "$0")/../.."

programs="$(realpath "$1")"
mkdir -p "$2"
folder="$(realpath "$2")"
venv="$folder/venv"
export BLOCKD_PROGRAM="$programs/blockd" PYTHONDONTWRITEBYTECODE=1

client/python/generate.sh --check
rm -rf "$folder/dist"
# The wheel is made from the source archive, so both are whole.
(cd client/python && /usr/bin/python3 -m build --no-isolation --outdir "$folder/dist" .) >"$folder/build.log" 2>&1 ||
  { cat "$folder/build.log"; exit 1; }
rm -rf "$venv"
/usr/bin/python3 -m venv --system-site-packages "$venv"
"$venv/bin/pip" -q install --disable-pip-version-check --no-index --no-deps --no-compile "$folder"/dist/*.whl

mypy() {
  /usr/bin/mypy --cache-dir="$folder/mypy" --config-file=client/python/pyproject.toml \
    --python-executable="$venv/bin/python" "$@"
}
mypy client/python/blockd
# As a user's own code is checked: against the package that was installed.
mypy tests/python tests/readme client/python/examples

"$venv/bin/python" -m pytest -q -p no:cacheprovider --durations=5 tests/python
