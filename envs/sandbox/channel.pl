# The sandbox's main process where perl is there: the requests of channel.sh with one process and no tool but sh and tar.
# channel.sh starts it with the driver's requests on descriptor 4 and the way back on standard output. It uses no module
# (many images have perl-base alone) and is one process, so its own end is the sandbox's end. It is the init of the process
# table: no signal from inside can end or stop it, and it collects orphans. channel.py has the protocol.
use strict;
my ($nonce, $deadline) = ('@NONCE@', @DEADLINE@);
my ($EINTR, $EAGAIN, $EACCES, $WNOHANG, $FIONREAD, $NONBLOCK) = (4, 11, 13, 1, 0x541B, 2048);
my ($in, $buffer, $run, $ready, @late) = (undef, '');
open($in, '<&=', 4) or exit 1;
fcntl($in, 2, 1);    # close on exec
$SIG{$_} = 'IGNORE' for 'PIPE', 'XFSZ';
sub finish { kill 'KILL', -1; exit }

# What only this process has cannot block: a command may open its end of a pipe for the other direction, and take or fill
# what select has just told of.
sub unblock { fcntl($_, 4, $NONBLOCK) for @_ }
sub again { $! == $EINTR or $! == $EAGAIN }
unblock(*STDOUT);

# System calls that have a name only in modules, which are large and often absent, by the kind of machine.
my ($setsid, $prctl, $sigprocmask, $signalfd, $gettime, $fstatat) = do {
    my ($self, $elf, $generic) = (undef, '', [157, 167, 135, 74, 113, 79]);
    open($self, '<', '/proc/self/exe') and sysread($self, $elf, 20);
    my %numbers = ("\x3e\0" => [112, 157, 14, 289, 228, 262], "\xb7\0" => $generic, "\xf3\0" => $generic);
    @{ $numbers{substr($elf, 18, 2)} || [] };
};
# PR_SET_DUMPABLE: nobody inside may trace this process, write its memory or open its descriptors. Holds for a child too,
# until it runs a program.
syscall($prctl, 4, 0) if defined $prctl;

# A child's end is told through a descriptor. A handler would be a way to end this process: perl gives up when one is called
# too often, and commands may send signals. Hence no alarm either: every wait ends at the deadline.
my ($ended, $ends, $chld) = (0, undef, pack 'Q', 1 << 16);
my $fd = defined $signalfd ? syscall($signalfd, -1, $chld, 8, 02004000) : -1;    # close on exec, not blocking
if ($fd >= 0) { open($ends, '<&=', $fd) and syscall($sigprocmask, 0, $chld, 0, 8) }
else { $SIG{CHLD} = sub { $ended = 1 } }    # wakes select, most of the time

sub now {
    return time unless defined $gettime;
    my $now = "\0" x 16;
    syscall($gettime, $_[0] // 1, $now);
    my ($seconds, $nano) = unpack 'qq', $now;
    return $seconds + $nano / 1e9;
}
my $end = now() + $deadline;

# From when on what changes has been changed by what ran here, by the clock that inodes get their times from
# (CLOCK_REALTIME_COARSE).
my $since = now(5);

# await READS WRITES SECONDS: select.
sub await {
    my $left = $end - now();
    finish() if $left <= 0;
    return select($_[0], $_[1], undef, defined $_[2] && $_[2] < $left ? $_[2] : $left);
}

sub out {
    my ($data, $at) = ($_[0], 0);
    while ($at < length $data) {
        my $n = syswrite(STDOUT, $data, length($data) - $at, $at);
        if (defined $n) { $at += $n }
        elsif (!again()) { finish() }
        else { vec(my $room = '', 1, 1) = 1; await(my $none, $room) }
    }
}
sub frame { "\x1e$nonce " . join(' ', @_) . "\n" }

# later: what a running command has to say goes with its end, in one write, for each costs every process between here and
# the driver a turn. The main loop sends it when there is much of it or the command takes its time.
my $unsent = '';
sub later {
    $unsent .= $_[0];
    flush() if length $unsent > 1 << 15;
}
sub flush {
    out($unsent) if length $unsent;
    $unsent = '';
}

# more: wait for further bytes of the driver; its end is ours.
sub more {
    vec(my $bits = '', 4, 1) = 1;
    await($bits, my $none);
    my $n = sysread($in, $buffer, 1 << 16, length $buffer);
    finish() unless $n or (!defined $n and again());
}
sub take {
    my $size = shift;
    more() while length $buffer < $size;
    return substr($buffer, 0, $size, '');
}

# child CODE: a process with nothing of ours open.
sub child {
    my $code = shift;
    my $pid = fork;
    return $pid if $pid or !defined $pid;
    $SIG{$_} = 'DEFAULT' for 'PIPE', 'XFSZ', 'CHLD';
    syscall($sigprocmask, 1, $chld, 0, 8) if defined $sigprocmask;
    $code->();
    exit 127;
}

# prepare: a process in its own session, started before its command is known: that comes through a pipe.
sub prepare {
    my ($read, $write, $told, $feed);
    return undef unless pipe($read, $write) and pipe($told, $feed);
    unblock($read, $feed);
    my $pid = child(sub {
        if (open(my $file, '>', '/proc/self/oom_score_adj')) { syswrite($file, '500') }
        open(STDIN, '<', '/dev/null');
        open(STDOUT, '>&', $write);
        open(STDERR, '>&', $write);
        syscall($setsid) if defined $setsid;
        close $feed;
        command($told);
    });
    return defined $pid ? { pid => $pid, read => $read, feed => $feed } : undef;
}

# command: become the command that comes through the pipe.
sub command {
    my ($told, $text, $n) = (shift, '');
    1 while ($n = sysread($told, $text, 1 << 16, length $text)) or !defined $n && $! == $EINTR;
    exit 0 unless $text =~ s/^(\d+) (\d+) (\d+)\n//;    # nothing came: the channel wants no command
    my ($cwd, $env, $command) = unpack "a$1 a$2 a$3", $text;
    if (!chdir $cwd) { syswrite(STDERR, "sh: 1: cd: can't cd to $cwd\n"); exit 126 }
    my @variables = split /\0/, $env;
    @ENV{map { /^(.*?)=/s } @variables} = map { /=(.*)/s } @variables;
    # One argument of a program may have 128 KiB; a longer command is put together again inside.
    my $whole = 'c=; for p do c=$c$p; done; set --; unset p; eval "unset c; $c"';
    my @words = length $command < 100_000 ? $command : ($whole, 'sh', unpack '(a100000)*', $command);
    if (defined $setsid) { exec { '/bin/sh' } 'sh', '-c', @words }
    else { exec 'setsid', 'sh', '-c', @words }
    syswrite(STDERR, "sh: $!\n");
    exit 126;
}

# full: a command failed and there is no room for another process: the next one could start, but do nothing.
my $full = 0;
sub room {
    my $pid = child(sub { exit 0 });
    kill 'KILL', $pid if defined $pid;    # somebody may have stopped it
    waitpid($pid, 0) if defined $pid;
    return defined $pid;
}

sub start {
    my ($seq, $head, $tail, $more, $told) = @_;
    reap();
    if ($full) { $full = 0; return out(frame($seq, 'X', 'nofork')) }
    $run = $ready || prepare();
    undef $ready;
    return out(frame($seq, 'X', 'nofork')) unless $run;
    @$run{qw(seq head keep tail count more told)} = ($seq, $head, $tail, '', 0, $more, $told);
    later(frame($seq, 'A') . frame($seq, 'B'));
    feed(1 << 15);    # fits an empty pipe
}

# feed: a part of what the command's process waits for, no more than its pipe takes without blocking.
sub feed {
    my $n = syswrite($run->{feed}, $run->{told}, $_[0]);
    if (defined $n) { substr($run->{told}, 0, $n, '') }
    elsif (!again()) { $run->{told} = '' }
    delete $run->{feed} unless length $run->{told};
}

# pass: one read of the command's output: to the driver, or, once that is enough, into the tail. False at its end.
sub pass {
    my $n = sysread($run->{read}, my $data, $_[0]);
    return !defined $n && again() unless $n;
    if ($run->{head} > 0) {
        my $first = substr($data, 0, $run->{head}, '');
        $run->{head} -= length $first;
        later($first);
    }
    if (length $data) {
        later(frame($run->{seq}, 'T')) unless $run->{count};
        $run->{count} += length $data;
        $run->{tail} .= $data;
        my $excess = length($run->{tail}) - $run->{keep};
        substr($run->{tail}, 0, $excess, '') if $excess > 1 << 20;
    }
    return 1;
}

# reap: note which of our children have ended. A fork bomb ends them faster than they can be collected: so many at once.
sub reap {
    for (1 .. 100) {
        my $pid = waitpid(-1, $WNOHANG);
        return if $pid <= 0;
        if ($run and $pid == $run->{pid}) { $run->{code} = $? & 127 ? 128 + ($? & 127) : $? >> 8 }
        undef $ready if $ready and $pid == $ready->{pid};
    }
    $ended = 1;
}

# collect: the command has ended, or not yet (false). What it wrote lies in the pipe; what its children write from now on
# is read and dropped.
sub collect {
    my $code = $run->{code};
    return 0 unless defined $code;
    my $size = pack 'L', 0;
    my $left = ioctl($run->{read}, $FIONREAD, $size) ? unpack 'L', $size : 1 << 20;
    while ($left > 0) {
        my $before = $run->{count} + $run->{head};
        vec(my $bits = '', fileno $run->{read}, 1) = 1;
        last unless select($bits, undef, undef, 0) > 0;
        my $n = $left < 1 << 16 ? $left : 1 << 16;
        pass($n) or last;
        $left -= $n;
    }
    my $end = frame($run->{seq}, 'E', $code);
    if ($run->{count}) {
        my $excess = length($run->{tail}) - $run->{keep};
        substr($run->{tail}, 0, $excess, '') if $excess > 0;
        $end = $run->{tail} . frame($run->{seq}, 'Z', $run->{count});
    }
    push @late, $run->{read} unless $run->{ended};
    later($end . frame($run->{seq}, 'D', $code) . frame($run->{seq}, 'X'));
    flush();
    my $more = $run->{more};
    undef $run;
    $ready = prepare() if $more;    # not sooner: a command that runs could write to its pipes
    $full = 1 if $code != 0 and !room();
    return 1;
}

# others: what else is in the process table. What has ended and only waits to be collected is left out, unless other
# threads of it go on; it is counted in $ghosts, for until then it takes up room in the table.
my $ghosts = 0;
sub others {
    my @found;
    $ghosts = 0;
    opendir(my $proc, '/proc') or return '?';
    for my $pid (grep { /^\d+$/ && $_ != 1 && $_ != $$ } readdir $proc) {
        open(my $file, '<', "/proc/$pid/stat") or next;
        my $line = <$file>;
        next unless defined $line and $line =~ /.*\) (\S)(?: \S+){16} (\d+)/s;
        if ($1 =~ /[ZX]/ and $2 < 2) { $ghosts++ }
        else { push @found, $pid }
    }
    return @found;
}

# stop: kill(-1) spares nobody but the caller, and no fork slips through it: the kernel starts a fork anew whose parent is
# to die. Answers what the process table still shows.
sub stop {
    my ($seq, @left) = @_;
    $full = 0;
    for my $try (1 .. 40) {
        kill 'KILL', -1;
        $run->{more} = 0 if $run;
        reap();
        collect() if $run;
        last unless (@left = others()) or $ghosts;
        select(undef, undef, undef, 0.0005 * $try);
    }
    later(frame($seq, 'S', @left));
    flush();
}

sub answer {
    my ($verb, $seq, @words) = @_;
    if ($verb eq 'run') {
        my ($head, $tail, $more, @sizes) = @words;
        my $size = 0;
        $size += $_ for @sizes;
        start($seq, $head, $tail, $more, "@sizes\n" . take($size));
    }
    elsif ($verb eq 'stop') { stop($seq) }
    elsif ($verb eq 'put') {
        my ($mode, $bytes, $size) = @words;
        told($seq, put(take($size), $mode, $bytes));
    }
    elsif ($verb eq 'get') {
        my ($max, $size) = @words;
        get($seq, take($size), $max);
    }
    elsif ($verb eq 'look') { look($seq, take($words[0])) }
    elsif ($verb eq 'untar') {
        my ($bytes, $size) = @words;
        told($seq, untar(take($size), $bytes));
    }
    else { finish() }
}

out(frame(0, 'R', 'perl'));
$ready = prepare();
while (1) {
    if ($buffer =~ s/^([^\n]*)\n//) {
        my ($given, @words) = split / /, $1;
        finish() unless $given eq $nonce;
        answer(@words);
        next;
    }
    my ($bits, $feeds) = ('', '');
    vec($bits, fileno $_, 1) = 1 for $in, $ends || (), @late, $run && !$run->{ended} ? $run->{read} : ();
    vec($feeds, fileno $run->{feed}, 1) = 1 if $run and $run->{feed};
    my $found = await($bits, $feeds, $ended ? 0 : $run ? 0.02 : undef);
    flush() if $found == 0 and !$ended;
    $ended = 0;
    sysread($ends, my $junk, 4096) if $ends;
    @late = grep { !vec($bits, fileno $_, 1) or sysread($_, my $junk, 1 << 16) // again() } @late if $found > 0 and @late;
    reap();
    if ($run) {
        feed(4096) if $found > 0 and $run->{feed} and vec($feeds, fileno $run->{feed}, 1);
        $run->{ended} = !pass(1 << 16) if $found > 0 and !$run->{ended} and vec($bits, fileno $run->{read}, 1);
        collect();
    }
    next unless $found > 0;
    more() if vec($bits, fileno $in, 1);
}
