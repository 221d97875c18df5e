#!/usr/bin/env bash
# A Docker engine for machines that have none running (CI, a bare Debian box). Safe to run again.
#
#   scripts/docker-engine.sh start     install docker.io where absent, start dockerd in the background, wait until it answers
#   scripts/docker-engine.sh stop      end the engine this script started; any other engine is left alone
#   scripts/docker-engine.sh status    exit code 0 when an engine answers
#
# An engine that already answers (DOCKER_HOST respected) is used as it is. The engine started here has no bridge and
# touches no firewall rules: sandboxes have no network. State: $SAO_ENGINE_STATE (default /var/run/sao-docker).
set -euo pipefail

STATE="${SAO_ENGINE_STATE:-/var/run/sao-docker}"
PIDFILE="$STATE/dockerd.pid"
LOG="${SAO_ENGINE_LOG:-/var/log/sao-dockerd.log}"
WAIT_S="${SAO_ENGINE_WAIT_S:-60}"

say() { printf '[docker-engine] %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

answers() { command -v docker >/dev/null && timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

lives() { # the pid file $1 names a living dockerd; one that was killed and not yet collected does not count
    local stat
    [ -s "$1" ] && stat="$(cat "/proc/$(cat "$1")/stat" 2>/dev/null)" || return 1
    case "$stat" in *"(dockerd) Z"* | *"(dockerd) X"*) return 1 ;; *"(dockerd)"*) return 0 ;; *) return 1 ;; esac
}

ours() { lives "$PIDFILE"; }

install_engine() {
    command -v dockerd >/dev/null && command -v docker >/dev/null && return 0
    command -v apt-get >/dev/null || die "no dockerd here and no apt-get to install it with. Install Docker (https://docs.docker.com/engine/install/), or use --sandbox embedded."
    say "apt-get install docker.io"
    export DEBIAN_FRONTEND=noninteractive
    # policy-rc.d keeps the package's own service from starting a second engine while we install
    local policy=/usr/sbin/policy-rc.d made=0
    if [ ! -e "$policy" ]; then printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod +x "$policy"; made=1; fi
    apt-get install -y -q --no-install-recommends docker.io >/dev/null 2>&1 ||
        { apt-get update -q >/dev/null 2>&1 || true; apt-get install -y -q --no-install-recommends docker.io >/dev/null; } ||
        { [ "$made" = 1 ] && rm -f "$policy"; die "apt-get could not install docker.io (its message is above)."; }
    [ "$made" = 1 ] && rm -f "$policy"
    return 0
}

start() {
    if answers; then say "an engine answers already"; return 0; fi
    case "${DOCKER_HOST:-}" in
        ''|unix:///var/run/docker.sock|unix:///run/docker.sock) ;;
        *) die "DOCKER_HOST=$DOCKER_HOST does not answer, and only a local engine can be started here. Start that engine or unset DOCKER_HOST." ;;
    esac
    [ "$(id -u)" = 0 ] || die "starting an engine needs root: run 'sudo $0 start', or use --sandbox embedded."
    mkdir -p "$STATE" "$(dirname "$LOG")"
    exec 9>"$STATE/lock"
    flock 9                                    # two callers at once: the second finds the first one's engine
    if answers; then say "an engine answers already"; return 0; fi
    install_engine
    local i tries=3
    for ((i = 0; i < WAIT_S * 5; i++)); do
        if ! ours; then
            # An engine that was killed leaves a pid file and a containerd that may still be ending: try again then.
            [ "$tries" -gt 0 ] || { tail -n 15 "$LOG" >&2; die "dockerd ends while starting; its last lines are above (whole log: $LOG)."; }
            [ "$tries" -eq 3 ] || sleep 2
            tries=$((tries - 1))
            lives /var/run/docker.pid || rm -f /var/run/docker.pid
            say "starting dockerd (log: $LOG)"
            setsid dockerd --bridge=none --iptables=false --ip6tables=false ${SAO_DOCKERD_ARGS:-} >>"$LOG" 2>&1 </dev/null 9>&- &
            echo $! >"$PIDFILE"
            sleep 0.3 # until the new process is dockerd
        fi
        if answers; then say "engine $(docker version --format '{{.Server.Version}}') answers"; return 0; fi
        sleep 0.2
    done
    tail -n 15 "$LOG" >&2
    die "dockerd gave no answer within $WAIT_S s; its last lines are above (whole log: $LOG)."
}

stop() {
    if ! ours; then say "no engine of this script is running"; rm -f "$PIDFILE"; return 0; fi
    local pid i
    pid="$(cat "$PIDFILE")"
    kill "$pid"
    for ((i = 0; i < 150; i++)); do
        kill -0 "$pid" 2>/dev/null || { rm -f "$PIDFILE"; say "stopped"; return 0; }
        sleep 0.2
    done
    die "dockerd (pid $pid) did not end within 30 s; see $LOG."
}

case "${1:-}" in
    start) start ;;
    stop) stop ;;
    status)
        if answers; then
            say "an engine answers: $(docker version --format '{{.Server.Version}}')$(ours && echo ' (started by this script)')"
        else
            say "no engine answers at ${DOCKER_HOST:-unix:///var/run/docker.sock}"; exit 1
        fi ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
