#!/usr/bin/env bash
# What a first user meets, tried for real on this machine with the packages of this checkout's .venv: a clone in a path
# with a space, a read-only checkout under another user, users in and out of the socket's group, terminals of other
# encodings, NO_COLOR, places that cannot be written, the wheel used elsewhere, every extra by itself. One line a check;
# exit code 1 when one of them fails. About two minutes of processor time. Needs `make install`; what needs root or an
# engine says so where there is none.
set -uo pipefail
cd "$(dirname "$0")/.."
root="$PWD"
python="$root/.venv/bin/python"
work="$(mktemp -d "${TMPDIR:-/tmp}/sao first use.XXXXXX")"
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
chmod 755 "$work"
failed=0
only="${1:-.}" # a pattern: these checks alone, e.g. scripts/first-use.sh 'clone|wheel'

check() { # name, function: its output is shown where it fails; code 77 says that it cannot be tried here
    local began=$SECONDS code
    [[ $1 =~ $only ]] || return 0
    "$2" >"$work/log" 2>&1
    code=$?
    case $code in
        0) printf 'ok    %s (%d s)\n' "$1" $((SECONDS - began)) ;;
        77) printf 'skip  %s: %s\n' "$1" "$(tail -n 1 "$work/log")" ;;
        *) printf 'FAIL  %s (%d s, code %d)\n' "$1" $((SECONDS - began)) $code; tail -n 25 "$work/log"; failed=1 ;;
    esac
}

skip() { echo "$1"; return 77; }
refused() { # a refusal's code and words, and no traceback: pattern, command...
    local pattern="$1" said code
    shift
    said="$("$@" 2>&1)"
    code=$?
    echo "$said"
    [ $code = 2 ] || [ $code = 3 ] || return 1
    ! grep -q Traceback <<<"$said" && tr '\n' ' ' <<<"$said" | grep -Eq "$pattern"
}
sao() { (cd "$clone" && "$python" -m sao "$@"); } # the clone's own code stands first on the path
as_user() { # groups, command...: as nobody, who owns nothing here
    local groups="$1"
    shift
    [ -n "$groups" ] && groups=(--groups "$groups") || groups=(--clear-groups)
    (cd "$clone" && HOME="$work/home" setpriv --reuid=65534 --regid=65534 "${groups[@]}" env PYTHONDONTWRITEBYTECODE=1 "$@")
}
another_user() {
    [ "$(id -u)" = 0 ] || skip "only root can become another user" || return
    as_user "" "$python" -c 'import torch' || skip "another user may not read $root/.venv"
}

clone="$work/a clone"
small=(rollout --plain --episodes 2 --sandbox embedded)
git clone -q "$root" "$clone"
mkdir -p "$work/home" && chmod 777 "$work/home"

clone_with_a_space() {
    SAO_RUNS="$work/some runs" sao "${small[@]}" && SAO_RUNS="$work/some runs" sao replay --plain
}
read_only_checkout() {
    another_user || return
    chmod -R a-w "$clone"
    as_user "" env SAO_RUNS="$work/home/runs" "$python" -m sao "${small[@]}"
    local code=$?
    chmod -R u+w "$clone"
    [ -z "$(git -C "$clone" status --porcelain)" ] && return $code
}
nowhere_to_write() {
    another_user || return
    refused "Choose another place|SAO_RUNS" as_user "" "$python" -m sao "${small[@]}" # ./runs of a folder of root's
}
socket=/var/run/docker.sock
engine() { [ -S $socket ] && [ -z "${DOCKER_HOST:-}" ] || skip "no engine at $socket"; }
out_of_the_group() {
    engine && another_user || return
    refused "is for group|only root may use" \
        as_user "" env SAO_RUNS="$work/home/out" "$python" -m sao rollout --plain --episodes 1 --sandbox docker
}
in_the_group() {
    engine && another_user || return
    local group
    group="$(stat -L -c %g $socket)"
    as_user "$group" env SAO_RUNS="$work/home/in" "$python" -m sao rollout --plain --episodes 1 --sandbox docker
}
other_encodings() (
    local encoding
    for encoding in ascii cp1252; do
        export LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=$encoding SAO_RUNS="$work/some runs"
        { sao config --describe && sao rollout --dry-run && sao rollout --help; } >"$work/said" 2>&1 || { cat "$work/said"; exit 1; }
        iconv -f $encoding -t utf-8 "$work/said" >/dev/null && ! grep -q Traceback "$work/said" || exit 1
    done
)
no_color() {
    command -v script >/dev/null || skip "no script(1)" || return
    (cd "$clone" && TERM=xterm-256color NO_COLOR=1 SAO_RUNS="$work/plain" script -qec "'$python' -m sao rollout --episodes 2 --sandbox embedded" /dev/null) >"$work/said" || return 1
    ! grep -Pq '\x1b\[[0-9;]*(3[0-7]|38;|9[0-7])[0-9;]*m' "$work/said"
}
wheel_elsewhere() ( # in a shell of its own: it changes the folder
    "$python" -m pip wheel -q --no-deps --no-build-isolation -w "$work/wheel" "$clone" || "$python" -m pip wheel -q --no-deps -w "$work/wheel" "$clone" || exit 1
    "$python" -m pip install -q --no-deps --target "$work/site" "$work"/wheel/*.whl || exit 1
    mkdir -p "$work/elsewhere" && cd "$work/elsewhere" || exit 1
    PYTHONPATH="$work/site" "$python" -m sao --version | grep -F "$work/site" || exit 1
    PYTHONPATH="$work/site" "$python" -m sao "${small[@]}"
)
extra() {
    "$root/.venv/bin/uv" pip install -q --dry-run --python "$python" -c constraints.txt ".[$1]"
}

check "a clone in a path with a space" clone_with_a_space
check "a read-only checkout, another user" read_only_checkout
check "no place to write to" nowhere_to_write
check "a user out of the docker group" out_of_the_group
check "a user in the docker group" in_the_group
check "ASCII and cp1252 terminals" other_encodings
check "NO_COLOR on a terminal" no_color
check "the wheel, used elsewhere" wheel_elsewhere
links="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-$("$python" -m pip config get global.find-links 2>/dev/null || true)}}"
[ -z "$links" ] || export UV_FIND_LINKS="${links// /,}" # as scripts/install.sh
for name in $("$python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"])'); do
    case $name in vllm*) continue ;; esac # an environment of its own: scripts/vllm-env.sh
    this() { extra "$name"; }
    check "extra $name resolves by itself" this
done
exit $failed
