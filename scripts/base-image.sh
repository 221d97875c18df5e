#!/usr/bin/env bash
# Makes the base image for demo and test sandboxes from Debian packages; no registry is asked. Safe to run again.
#
#   scripts/base-image.sh              makes sao-base:latest unless it is there (about 90 s)
#   scripts/base-image.sh --force      makes it anew
#   scripts/base-image.sh --if-engine  where no engine answers, or the image cannot be made: says so, exits 0
#
# Contents: Debian, python3 with its whole standard library, git, patch, procps. As root on Debian it is made by
# debootstrap from the mirror that this machine's apt uses; elsewhere `docker build` on debian:bookworm-slim makes it.
# Needs an engine that answers (scripts/docker-engine.sh start).
set -euo pipefail

IMAGE="${SAO_BASE_IMAGE:-sao-base:latest}"
say() { printf '[base-image] %s\n' "$*" >&2; }
optional=0
[ "${1:-}" = --if-engine ] && optional=1
die() { say "$*"; [ "$optional" = 1 ] && exit 0; exit 1; }

if ! { command -v docker >/dev/null && docker version >/dev/null 2>&1; }; then
    [ "$optional" = 1 ] && exit 0 # sao rollout itself says that it takes the embedded sandbox
    die "no Docker engine answers: run scripts/docker-engine.sh start first."
fi
if [ "${1:-}" != --force ] && docker image inspect "$IMAGE" >/dev/null 2>&1; then
    say "$IMAGE is there"
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "docker build on debian:bookworm-slim ..."
    docker build -t "$IMAGE" - >/dev/null <<'DOCKERFILE' || die "the build failed (is the registry reached?). As root on Debian this script needs no registry; or tag any image with python3, git, patch and procps as $IMAGE."
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3 git patch procps && rm -rf /var/lib/apt/lists/*
ENV LANG=C.UTF-8
DOCKERFILE
    say "$IMAGE is ready"
    exit 0
fi
if ! command -v debootstrap >/dev/null; then
    say "apt-get install debootstrap"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q --no-install-recommends debootstrap >/dev/null 2>&1 ||
        { apt-get update -q >/dev/null 2>&1 || true; apt-get install -y -q --no-install-recommends debootstrap >/dev/null; }
fi

# Suite and mirror: what apt itself has as Debian's main archive.
suite="${SAO_BASE_SUITE:-bookworm}"
targets() { apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null; }
mirror="${SAO_BASE_MIRROR:-$(targets | awk -v s="$suite" '$2 == s && $3 == "main" && $1 ~ /^https?:|^file:/ {print $1; exit}')}"
if [ -z "$mirror" ]; then # a machine of another suite: its archive has ours too
    mirror="$(targets | awk '$3 == "main" && $1 ~ /debian\/?$/ {print $1; exit}')"
fi
[ -n "$mirror" ] || die "apt knows no Debian archive for $suite. Say one: SAO_BASE_MIRROR=<url of a Debian archive> $0"

work="$(mktemp -d "${TMPDIR:-/var/tmp}/sao-base-image.XXXXXX")"
clean() { # debootstrap leaves proc mounted when it is interrupted
    umount "$work/root/proc" "$work/root/sys" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM

say "making $IMAGE from Debian $suite, about 90 s ..."
if ! debootstrap --variant=minbase --include=python3,git,patch,procps "$suite" "$work/root" "$mirror" >"$work/log" 2>&1; then
    tail -n 20 "$work/log" >&2
    [ -f "$work/root/debootstrap/debootstrap.log" ] && tail -n 20 "$work/root/debootstrap/debootstrap.log" >&2
    die "debootstrap failed; its last lines are above."
fi
rm -rf "$work"/root/var/cache/apt/* "$work"/root/var/lib/apt/lists/* "$work"/root/usr/share/doc/* \
    "$work"/root/usr/share/man/* "$work"/root/usr/share/locale/* "$work"/root/var/log/*
: >"$work/root/etc/apt/sources.list" # no network in a sandbox, and no mirror of this machine in an image
# Dockerfile-less import: files and the few settings sandboxes rely on.
tar -C "$work/root" --one-file-system -c . | docker import \
    -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    -c 'ENV LANG=C.UTF-8' -c 'WORKDIR /' -c 'CMD ["/bin/sh"]' - "$IMAGE" >/dev/null
say "$IMAGE is ready ($(docker image inspect --format '{{.Size}}' "$IMAGE" | awk '{printf "%d MB", $1 / 1e6}'))"
