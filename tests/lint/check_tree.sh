#!/usr/bin/env bash
# The rules of the tree that no compiler checks: who may include whom, the top level, file sizes, header
# guards, words that must not stay, shell scripts. Prints every violation and fails if there is one.
set -euo pipefail
cd "$(dirname "$0")/../.."

violations=0
report() {
  echo "$*" >&2
  violations=$((violations + 1))
}

# Reports each line of $2, if there are any, after $1.
report_lines() {
  local line
  if [[ -z "$2" ]]; then return; fi
  while IFS= read -r line; do report "$1: $line"; done <<<"$2"
}

mapfile -t sources < <(find engine server client tests -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) | sort)
mapfile -t texts < <(find . \( -path ./.git -o -path './build*' -o -path './.cache' -o \
  -name __pycache__ -o -path './tests/data' -o -path './tests/fuzz/corpus' \) -prune -o -type f -print | sort)
mapfile -t scripts < <(grep -lE '^#!.*\b(ba)?sh$' "${texts[@]}")

# --- Who may include whom ---------------------------------------------------------------------------
# What a file may include of ours, as a regex on the path: an internal header is its path from the root, a
# public one lies under include/ of its module and begins with "blockd/", as the generated wire contract does.
#
# The rooms of a module in their order: each includes only itself and those before it. ".": the module's own
# files.
# shellcheck disable=SC2034  # both are read by their names
engine_rooms=(plan cpu/threads cpu/kernels cpu/inverse cpu solver smoother/orthogonal smoother .)
# shellcheck disable=SC2034
server_rooms=(base log core/common core/tenants core/cache core/shard core/operations core/smooth core identity options net
  transport/wire transport/upload transport/rpc transport/calls transport/stream transport/shm transport .)
# shellcheck disable=SC2034
client_rooms=(base wire shm rpc upload calls session .)
# shellcheck disable=SC2034
blockctl_rooms=(text formats load .)
# The headers that a file of a folder with these rooms may include, as a regex: $1 the folder, $2 the file.
rooms_before() {
  local -n rooms="${1##*/}_rooms"
  local own all='' room
  own="$(dirname "${2#"$1"/}")"
  for room in "${rooms[@]}"; do
    all+="${all:+|}$1/${room#.}${room:+/}[a-z_0-9]+\\.h"
    if [[ "$room" == "$own" ]]; then break; fi
  done
  echo "${all//\/\//\/}"
}
allowed_includes() {
  local engine='blockd/engine/[a-z_]+\.h' client='blockd/client/[a-z_]+\.h'
  local proto='blockd/v1/(admin|blockd)(\.grpc)?\.pb\.h' problems='engine/problems/[a-z_]+\.h'
  case "$1" in
    engine/include/*) echo "$engine" ;;
    engine/backend_registry.cc) echo "$engine|engine/(cpu|gpu)/[a-z_]+\.h" ;;
    # Lower ones first: each may include what is before it. The methods do not know one another.
    engine/gpu/arch/*) echo 'engine/gpu/arch/(host/)?[a-z_]+\.h' ;;
    engine/gpu/runtime/*) echo "$engine|engine/gpu/((runtime|arch|arch/host)/)?[a-z_]+\.h" ;;
    engine/gpu/plan/*) echo "$engine|engine/gpu/(arch|plan)/[a-z_]+\.h" ;;
    engine/gpu/tile/*) echo 'engine/gpu/(arch|plan|tile)/[a-z_]+\.h' ;;
    engine/gpu/vectors/*) echo "$engine|engine/gpu/(arch|plan|runtime|tile|vectors)/[a-z_]+\.h" ;;
    engine/gpu/segment/*) echo "$engine|engine/gpu/((arch|plan|runtime|tile|vectors|segment)/)?[a-z_]+\.h" ;;
    engine/gpu/inverse/*) echo "$engine|engine/gpu/((arch|plan|runtime|tile|inverse)/)?[a-z_]+\.h" ;;
    engine/gpu/information/*) echo "$engine|engine/gpu/((arch|plan|runtime|tile|information)/)?[a-z_]+\.h" ;;
    engine/gpu/lockstep/*) echo "$engine|engine/gpu/((arch|plan|runtime|tile|vectors|lockstep)/)?[a-z_]+\.h" ;;
    engine/gpu/substitution/*) echo "$engine|engine/gpu/((arch|plan|runtime|tile|vectors|substitution)/)?[a-z_]+\.h" ;;
    engine/gpu/task_list/*) echo "$engine|engine/gpu/((arch|plan|runtime|tile|vectors|task_list)/)?[a-z_]+\.h" ;;
    engine/gpu/*) echo "$engine|engine/gpu/([a-z_]+/)?[a-z_]+\.h" ;;
    engine/problems/*) echo "$problems" ;;
    engine/*) echo "$engine|$(rooms_before engine "$1")" ;;
    server/identity/*) echo "$(rooms_before server "$1")|blockd/v1/tenants\.pb\.h" ;;
    server/base/* | server/log/* | server/core/*) echo "$engine|$(rooms_before server "$1")" ;;
    server/*) echo "$engine|$(rooms_before server "$1")|$proto" ;;
    client/include/*) echo "$client|$proto" ;;
    client/blockctl/*)
      echo "$client|client/base/[a-z_]+\.h|$(rooms_before client/blockctl "$1")|$problems|$proto" ;;
    client/examples/*) echo "$client|$problems|$proto" ;;
    client/*) echo "$client|$(rooms_before client "$1")|$proto" ;;
    tests/support/*) echo "$engine|tests/support/[a-z_/]+\.h|$problems" ;;
    tests/engine/*) echo "$engine|engine/.*\.(h|cu)|tests/(support|engine)/[a-z_/]+\.h" ;;
    tests/server/*) echo "$engine|server/.*\.h|tests/(support|server)/[a-z_/]+\.h|$problems|$proto" ;;
    *) echo '.*' ;;
  esac
}
# No room is fuller than a stranger can overlook.
report_lines "a folder with more than 24 sources" \
  "$(printf '%s\n' "${sources[@]}" | sed 's|/[^/]*$||' | sort | uniq -c | awk '$1 > 24')"
# Libraries of others that a folder stays free of.
foreign_includes() {
  case "$1" in
    engine/gpu/*) echo 'grpc|google/|prometheus|microhttpd|gtest|benchmark' ;;
    engine/*) echo 'grpc|google/|prometheus|microhttpd|gtest|benchmark|cuda|hip' ;;
    server/core/*) echo 'grpc|google/|cuda|hip' ;;
    server/identity/*) echo 'grpc|prometheus|microhttpd|cuda|hip' ;;
    client/*) echo 'prometheus|cuda|hip' ;;
    server/*) echo 'cuda|hip|cblas|lapacke' ;;
    tests/bench/*) echo 'hip' ;;  # measures what the device itself can do
    *) echo 'cuda|hip' ;;
  esac
}
for file in "${sources[@]}"; do
  includes="$(grep -nE '^ *# *include' "$file" || true)"
  ours="$(grep -E '"(blockd|engine|server|client|tests)/' <<<"$includes" || true)"
  others="$(grep -vE '"(blockd|engine|server|client|tests)/' <<<"$includes" || true)"
  report_lines "$file may not include" \
    "$(grep -vE "\"($(allowed_includes "$file"))\"|^$" <<<"$ours" || true)"
  # A quoted include of neither ours nor a library's is one that only its own folder can resolve.
  report_lines "$file: not a path from the root" \
    "$(grep -E '"[^/"]+"' <<<"$others" || true)"
  report_lines "$file may not include" \
    "$(grep -E "[<\"]($(foreign_includes "$file"))" <<<"$others" || true)"
done

# --- The top level --------------------------------------------------------------------------------
for path in *; do
  case "$path" in
    proto | server | engine | client | deploy | tests | build | build-*) ;;
    Dockerfile | CMakeLists.txt | CMakePresets.json | LICENSE) ;;
    README.md | CHANGELOG.md | CONTRIBUTING.md) ;;
    *) report "$path: not one of the top level's names" ;;
  esac
done

# --- Sizes, guards, white space --------------------------------------------------------------------
for file in "${sources[@]}"; do
  lines="$(wc -l <"$file")"
  if ((lines > 500)); then report "$file: $lines lines, at most 500"; fi
  # A part of a .cc file, included once, has no guard and says so in its name: *_impl.h.
  if [[ "$file" == *.h && "$file" != *_impl.h ]]; then
    guard="BLOCKD_$(tr 'a-z/.' 'A-Z__' <<<"${file#*/include/blockd/}")_"
    if ! grep -qx "#ifndef $guard" "$file" || ! grep -qx "#define $guard" "$file"; then
      report "$file: its guard must be $guard"
    fi
    if grep -q '^using namespace' "$file"; then report "$file: using namespace in a header"; fi
  fi
done
for file in "${texts[@]}"; do
  if [[ -s "$file" && -n "$(tail -c 1 "$file")" ]]; then report "$file: no newline at its end"; fi
done
report_lines "white space at the end" \
  "$(grep -nIE '[[:space:]]+$' "${texts[@]}" | grep -v '^\./LICENSE:' || true)"

# --- Words that must not stay ----------------------------------------------------------------------
# found PATTERN FILE...: matching lines, but not those of this script.
found() {
  grep -HnIE "$@" | grep -vE '^(\./)?tests/lint/check_tree\.sh:' || true
}
report_lines "unfinished" \
  "$(found '\b(TODO|FIXME|XXX|HACK|GTEST_SKIP|DISABLED_[A-Za-z]+)\b' "${texts[@]}")"
report_lines "a path of one machine" "$(found '/(work|home|root)/' "${texts[@]}")"
report_lines "a comment begins with its subject" \
  "$(found '^ *//+ *(Of|What|Whoever|Whether|Those) ' "${sources[@]}")"
report_lines "no exceptions of our own" \
  "$(found '\b(throw [a-z]|throw;)' "${sources[@]}" | grep -vE ':[0-9]+: *//' || true)"

# --- Names that must agree -------------------------------------------------------------------------
# Every metric that the dashboard and the alerts read is one that the server has.
while IFS= read -r metric; do
  name="$metric"
  for suffix in _bucket _sum _count; do name="${name%"$suffix"}"; done
  grep -q "\"$name\"" server/core/common/metrics.cc server/process_metrics.cc || report "deploy/: no metric $metric in the server"
done < <(grep -rhoE '\bblockd_[a-z_]+' deploy/grafana/dashboards deploy/prometheus | sort -u)

version="$(sed -n 's/^project(blockd VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)"
grep -qF "image.version=\"$version\"" Dockerfile || report "Dockerfile: its label of the version is not $version"

# --- Tables and pictures are as their files say ----------------------------------------------------
tests/lint/write_docs.py --check || report "documentation: see above"

# --- Shell scripts ---------------------------------------------------------------------------------
for script in "${scripts[@]}"; do
  [[ -x "$script" ]] || report "$script: not executable"
  bash -n "$script" || report "$script: does not parse"
done
shellcheck "${scripts[@]}" || report "shellcheck: see above"

if ((violations > 0)); then
  echo "check_tree: $violations violations" >&2
  exit 1
fi
echo "check_tree: ${#sources[@]} sources, ${#scripts[@]} scripts: no violation"
