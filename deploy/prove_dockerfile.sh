#!/usr/bin/env bash
# Runs the Dockerfile's own steps where no container engine is: each stage in a fresh Debian root made
# by debootstrap, each RUN in a chroot, COPY and USER as written. Then starts the last stage's
# ENTRYPOINT as its USER, runs its HEALTHCHECK and the demo, sends its STOPSIGNAL and expects exit 0.
#
#   sudo deploy/prove_dockerfile.sh [FOLDER]      the roots go to FOLDER, else to a temporary one
#
# Needs root, and about 3 GB. Packages come from where this machine gets its own. It reads the subset
# of the Dockerfile language that our Dockerfile uses, and refuses anything else.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
  echo "prove_dockerfile.sh: $*" >&2
  exit 1
}
((EUID == 0)) || die "needs root, for debootstrap and chroot"
# Mounts in a namespace of our own vanish with the process, whatever happens.
if [[ "${BLOCKD_UNSHARED:-}" != yes ]]; then
  BLOCKD_UNSHARED=yes exec unshare --mount "$0" "$@"
fi

deploy/install_packages.sh prove
keep=true
if [[ $# -eq 0 ]]; then keep=false; fi
roots="${1:-$(mktemp -d)}"
mkdir -p "$roots"
server=
cleanup() {
  if [[ -n "$server" ]]; then kill -KILL "$server" 2>/dev/null || true; fi
  awk -v at="$roots/" 'index($2, at) == 1 { print $2 }' /proc/self/mounts | sort -r |
    xargs -r -n 1 umount
  "$keep" || rm -rf --one-file-system "$roots"
}
trap cleanup EXIT

# The names of this stage's root, folder, user and commands, as the Dockerfile's lines set them.
root='' workdir=/ user=0:0 stopsignal=TERM entrypoint='' healthcheck=''

in_root() {  # in_root USER COMMAND...
  local as="$1"
  shift
  chroot --userspec="$as" "$root" /usr/bin/env -i -C "$workdir" HOME=/tmp \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

new_root() {  # new_root NAME: what the image debian:12-slim holds, with this machine's package sources
  local source=/etc/apt/sources.list.d/debian.sources mirror
  [[ ! -e "$roots/$1" ]] || die "$roots/$1 exists"
  if [[ ! -e "$roots/base" ]]; then
    mirror="$({ cat /etc/apt/sources.list $source 2>/dev/null || true; } |
      grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1)"
    [[ -n "$mirror" ]] || die "no Debian mirror in this machine's apt sources"
    debootstrap --variant=minbase bookworm "$roots/base" "${mirror% }" >"$roots/debootstrap.log"
  fi
  cp -a "$roots/base" "$roots/$1"
  root="$roots/$1" workdir=/ user=0:0
  if [[ -f $source ]]; then
    rm -f "$root/etc/apt/sources.list"
    cp $source "$root/etc/apt/sources.list.d/"
  fi
  cp /etc/resolv.conf "$root/etc/"
  mount -t proc proc "$root/proc"
}

copy() {  # copy [--from=STAGE] SOURCE TARGET, where the target ends in a slash
  local from=.
  if [[ "$1" == --from=* ]]; then
    from="$roots/${1#--from=}"
    shift
  fi
  [[ $# -eq 2 && "$2" == */ ]] || die "COPY $*: expected one source, and a target that ends in /"
  mkdir -p "$root$2"
  if [[ -d "$from/$1" ]]; then
    tar -C "$from/$1" --exclude-from=<(sed 's,^,./,' .dockerignore) -c . | tar -x -C "$root$2" --no-same-owner
  else
    cp -p "$from/$1" "$root$2"
  fi
}

words() {  # words '["a", "b"]': prints them, one a line
  sed -E 's/^\[ *"//; s/" *\]$//; s/", *"/\n/g' <<<"$1"
}

step() {  # one instruction of the Dockerfile
  local what="${1%% *}" rest="${1#* }"
  echo "-- $1"
  case "$what" in
    FROM)
      [[ "$rest" =~ ^debian:12-slim\ AS\ ([a-z]+)$ ]] || die "FROM $rest: only debian:12-slim AS name"
      new_root "${BASH_REMATCH[1]}"
      ;;
    COPY)
      read -ra rest_words <<<"$rest"
      copy "${rest_words[@]}"
      ;;
    RUN) in_root "$user" /bin/sh -c "$rest" ;;
    WORKDIR) mkdir -p "$root$rest" && workdir="$rest" ;;
    USER) user="$rest" ;;
    EXPOSE) ;;
    STOPSIGNAL) stopsignal="${rest#SIG}" ;;
    HEALTHCHECK) healthcheck="[${rest#*CMD [}" ;;
    ENTRYPOINT) entrypoint="$rest" ;;
    *) die "$what: not known here" ;;
  esac
}

while IFS= read -r line; do
  if [[ "$line" =~ ^\ *(#|$) ]]; then continue; fi
  while [[ "$line" == *\\ ]]; do
    IFS= read -r more
    line="${line%\\}${more#"${more%%[! ]*}"}"
  done
  step "$line"
done <Dockerfile
du -sh --exclude=proc "$root" | awk '{ print "-- final root: " $1 }'

[[ "${user%%:*}" != 0 ]] || die "the last stage runs as root"
mapfile -t start < <(words "$entrypoint")
mapfile -t check < <(words "$healthcheck")
echo "-- start, as $user: ${start[*]}"
chroot --userspec="$user" "$root" /usr/bin/env -i -C / PATH=/usr/local/bin:/usr/bin:/bin \
  "${start[@]}" &
server=$!
for ((attempt = 0; ; ++attempt)); do
  if in_root "$user" "${check[@]}"; then break; fi
  if ((attempt == 300)) || ! kill -0 "$server"; then die "the server did not become healthy"; fi
  sleep 0.2
done
echo "-- healthy: ${check[*]}"
in_root "$user" blockctl info
in_root "$user" blockctl demo --out=/tmp
echo "-- SIG$stopsignal"
kill "-$stopsignal" "$server"
status=0
wait "$server" || status=$?
server=
((status == 0)) || die "the server ended with status $status"
echo "-- the Dockerfile's steps, its health check, the demo and its stop work"
