# The sandbox's main process: one open channel for commands and files, in plain POSIX sh (dash, bash, busybox). Where perl
# is, channel.pl takes its place, which needs far fewer processes; this text is all that an image must be able to run.
# channel.py sends this text to `sh` on its standard input (comment lines dropped, @NAME@ filled in) and then
# one request a line: "<nonce> <verb> <quoted arguments>". Answers are frames on standard output,
#     RS <nonce> <seq> <kind> <arguments> LF
# with the command's raw output between them. The protocol is described in channel.py.
#
#   main (this)   waits; its end is the sandbox's end
#   +- control    reads requests, so it notices the driver's end at once; serves files; stops everything on request
#   +- runner     runs one command at a time in the foreground (in the background SIGINT would be ignored)
#   +- lease      ends main at the deadline, whatever became of driver and engine
#   shell         one a command, in its own session, started before its command is known: it waits for one line
#   filter        one a command, detached: passes the output on, capped, and afterwards swallows what background
#                 children still write
cd / || exit 1
umask 022
ulimit -n @NOFILE@ 2>/dev/null
ulimit -c 0 2>/dev/null
@LIMITS@
[ -d @WORKDIR@ ] || mkdir -p @WORKDIR@ || exit 1
@HELPER@
sao_n=@NONCE@
sao_rs='@RS@'
sao_nl='
'
exec 3>&1
if command -v setsid >/dev/null 2>&1; then
    launch() { exec setsid sh -c "$@"; }
else
    launch() { exec sh -c "$@"; }
fi
frame() { printf '%s%s %s\n' "$sao_rs" "$sao_n" "$*" >&3; }

# choose: define take BYTES, which copies exactly so many of standard input. GNU head reads no further than asked; others
# may, so they are tried first.
choose() {
    choose() { :; }
    if printf 'abcdef\n' | { head -c 3 >/dev/null 2>&1; read -r r && [ "$r" = def ]; }; then
        take() { head -c "$1"; }
    elif printf 'abcdef\n' | { dd bs=3 count=1 iflag=fullblock 2>/dev/null >/dev/null; read -r r && [ "$r" = def ]; }; then
        take() { dd bs="$1" count=1 iflag=fullblock 2>/dev/null; }
    else
        take() { dd bs=1 count="$1" 2>/dev/null; }
    fi
}
# rest: swallow what is left of standard input; mostly nothing, and then no process is started for it.
rest() { ! read -r r || cat >/dev/null; }

# filter SEQ READS TAIL: standard input to the driver, READS reads of at most 2 KiB as they come, then the last TAIL bytes.
filter() {
    read -r pid _ </proc/self/stat
    frame "$1" B "$pid"
    r=$(export LC_ALL=C; exec dd bs=2048 count="$2" 2>&1 >&3)
    r=${r%% records in*}
    r=${r##*"$sao_nl"}
    case $r in
    *[!0-9+]* | '') frame "$1" C; exec cat >/dev/null 3>&- ;;
    esac
    if [ $(($r)) -ge "$2" ]; then
        frame "$1" T
        n=$({ tee /dev/fd/5 2>/dev/null | tail -c "$3" >&3; } 5>&1 | wc -c)
        frame "$1" Z $((n))
        exec cat >/dev/null 3>&-
    fi
    frame "$1" C
}

# prepare SEQ READS TAIL: a shell in its own session that waits for "command SEQ <shell text>" on the runner's standard
# input, and the filter of its output. Returns when the command is over.
prepare() {
    {
        (
            echo 500 2>/dev/null >/proc/self/oom_score_adj
            launch "sao_nl='$sao_nl';"'IFS= read -r sao_c || exit; eval "${sao_c#command * }"' 2>&1
        )
        code=$?
        printf '%s%s %s E %d\n' "$sao_rs" "$sao_n" "$1" $code
        frame "$1" D $code
    } | { filter "$@" <&5 5<&- & } 5<&0
}

# table: every process as "pid:parent" in P, from the process table, without a fork. Left out is what has ended and only
# waits to be collected; one whose first thread alone has ended is not (it shows as a zombie with other threads).
table() {
    P=
    for q in /proc/[0-9]*; do
        pp= z=
        {
            while read -r k v _; do
                case $k$v in
                State:Z | State:X) z=1 ;;
                PPid:*) pp=$v; [ -n "$z" ] || break ;;
                Threads:[01]) pp=; break ;;
                esac
            done <"$q/status"
        } 2>/dev/null
        [ -z "$pp" ] || P="$P ${q#/proc/}:$pp"
    done
}

# ours FILTER...: put the processes of the channel in K: main, its children, the lease's sleep, the filters and their
# descendants.
ours() {
    K=" $$ $* "
    more=1
    while [ -n "$more" ]; do
        more=
        for q in $P; do
            case $K in *" ${q%:*} "*) continue ;; esac
            case ${q#*:} in
            "$$" | "$sao_lease") K="$K${q%:*} "; more=1 ;;
            *) case " $* $D" in *" ${q#*:} "*) K="$K${q%:*} "; D="$D${q%:*} "; more=1 ;; esac ;;
            esac
        done
    done
}

# stop SEQ FILTER...: freeze everything, kill all but the channel, let the channel go on; answer what is still there.
stop() {
    kill -STOP -1 2>/dev/null
    seq=$1
    shift
    table
    D=
    ours "$@"
    left= late=
    for q in $P; do
        case " 1$K" in *" ${q%:*} "*) ;; *) left="$left ${q%:*}" ;; esac
        case " $* " in *" ${q%:*} "*) late="$late ${q%:*}" ;; esac
    done
    [ -z "$left" ] || kill -KILL $left 2>/dev/null
    kill -CONT $K 2>/dev/null
    frame "$seq" S $left $late
}

# flush SEQ FILTER FORCE: the command is over but its background children hold the pipe: end the filter's reader once it
# idles, or at once when FORCE is 1. Answers 1 (ended), 0 (try again) or gone.
flush() {
    table
    D=
    ours "$2"
    k=
    for q in $D; do
        c= s=
        { read -r c <"/proc/$q/comm"; read -r s <"/proc/$q/stat"; } 2>/dev/null
        case $c in dd | tee) case $3${s##*\) } in 1* | 0S*) kill -KILL "$q" 2>/dev/null && k=1 ;; esac ;; esac
    done
    case " $P" in *" $2:"*) frame "$1" F ${k:-0} ;; *) frame "$1" F gone ;; esac
}

# put SEQ PATH MODE BYTES (MODE - keeps a file's own), get SEQ PATH MAX, untar SEQ DIRECTORY BYTES. The bytes follow the request line.
# Whatever goes wrong with the file, exactly BYTES are read, so that the next request is found.
put_stdin() {
    [ -d "$3" ] || mkdir -p -- "$3" || return 1
    m=${2#-}
    if [ -e "$1" ]; then
        [ -f "$1" ] || [ -d "$1" ] || { echo "$1: not a regular file"; return 1; }
    elif [ "$2" = 644 ]; then
        m=
    fi
    { cat >"$1"; } || return 1
    [ -z "$m" ] || chmod "$m" -- "$1"
}
put() {
    choose
    d=${2%/*}
    d=${d:-/}
    e=$(take "$4" | {
        put_stdin "$2" "$3" "$d" 2>&1
        s=$?
        rest
        exit $s
    })
    s=$?
    frame "$1" E $s "${e%%"$sao_nl"*}"
}
untar() {
    choose
    e=$(take "$3" | {
        { [ -d "$2" ] || mkdir -p -- "$2"; } 2>&1 && tar -xof - -C "$2" 2>&1
        s=$?
        rest
        exit $s
    })
    s=$?
    frame "$1" E $s "${e%%"$sao_nl"*}"
}
get() {
    if [ -d "$2" ]; then s=dir
    elif [ ! -e "$2" ]; then s=none
    elif [ ! -f "$2" ]; then s=special
    elif [ ! -r "$2" ]; then s=denied
    else s=ok
    fi
    frame "$1" B
    if [ $s = ok ]; then head -c "$3" <"$2" >&3 2>/dev/null || s=failed; fi
    frame "$1" E $s
}

control() {
    # An answer to a driver that is gone must not end control alone.
    trap 'kill -KILL -1; kill -KILL $$' PIPE
    while IFS= read -r sao_line; do
        case $sao_line in
        "$sao_n prepare "* | "$sao_n command "*) printf '%s\n' "${sao_line#"$sao_n "}" ;;
        "$sao_n "*) command eval "${sao_line#"$sao_n "}" || break ;;
        *) break ;;
        esac
    done
    kill -KILL -1
    kill -KILL $$
}
runner() {
    exec 2>/dev/null
    while IFS= read -r sao_line; do
        # A command that comes here has lost its shell.
        sao_seq=${sao_line#* }
        sao_seq=${sao_seq%% *}
        case $sao_line in
        prepare*)
            if command eval "$sao_line"; then
                frame "$sao_seq" X
                continue
            fi
            wait
            ;;
        esac
        frame "$sao_seq" X nofork
    done
}

# lease SECONDS: time by the process table's clock; a killed sleep does not end it early.
lease() {
    read -r t _ </proc/uptime
    end=$((${t%.*} + $1))
    while :; do
        read -r t _ </proc/uptime
        [ $((end - ${t%.*})) -gt 0 ] || kill -KILL $$
        sleep $((end - ${t%.*}))
    done
}

# One group, so the shell reads it whole before it runs any of it: a text cut short by the driver's death starts nothing,
# and a shell that reads its text byte by byte leaves nothing of it to control. The driver may be gone by now, and then
# the first frame ends main (SIGPIPE): the lease, which alone would keep the sandbox to its deadline, comes after it.
{
    frame 0 R
    lease @DEADLINE@ </dev/null >/dev/null 2>&1 3>&- &
    sao_lease=$!
    control | runner
    kill -KILL -1
    exit 0
}
