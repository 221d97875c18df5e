# What channel.pl does with files: put, get, untar, look. Part of its text; nothing here waits for anybody but the driver and tar,
# whatever a command has put in a file's place.
sub folders {
    my $path = '';
    for my $part (grep { length } split m{/}, $_[0]) {
        $path .= "/$part";
        -d $path or mkdir $path or -d $path or return "$path: $!";
    }
    return '';
}

# part: the next bytes of the driver, at most so many and at least one.
sub part {
    my $most = shift;
    more() unless length $buffer;
    return take($most < length $buffer ? $most : length $buffer);
}

sub put {
    my ($path, $mode, $size) = @_;
    my ($folder) = $path =~ m{^(.*)/}s;
    my ($error, $file) = (folders($folder));
    my $there = -e $path;
    if ($error eq '' and $there and !-f _ and !-d _) { $error = "$path: not a regular file" }
    # Not blocking (write, create, truncate): it may be a pipe by now.
    if ($error eq '' and !sysopen($file, $path, 577 | $NONBLOCK)) { $error = "$path: $!" }
    while ($size > 0) {
        my $data = part($size);
        $size -= length $data;
        while ($error eq '' and length $data) {
            my $n = syswrite($file, $data);
            if (defined $n) { substr($data, 0, $n, '') }
            elsif ($! != $EINTR) { $error = "$path: $!" }
        }
    }
    return $error if $error ne '';
    close $file or return "$path: $!";
    if ($mode ne '-' and ($there or $mode ne '644')) { chmod oct $mode, $path or return "$path: $!" }
    return '';
}

sub get {
    my ($seq, $path, $max) = @_;
    my ($state, $file) = ('ok');
    if (-d $path) { $state = 'dir' }
    elsif (!-e _) { $state = 'none' }
    elsif (!-f _) { $state = 'special' }
    elsif (!sysopen($file, $path, $NONBLOCK)) { $state = $! == $EACCES ? 'denied' : 'failed' }
    elsif (!-f $file) { $state = 'special' }
    out(frame($seq, 'B'));
    while ($state eq 'ok' and $max > 0) {
        my $n = sysread($file, my $data, $max < 1 << 16 ? $max : 1 << 16);
        if (!defined $n) { $state = 'failed' unless $! == $EINTR }
        elsif ($n == 0) { last }
        else { $max -= $n; out($data) }
    }
    out(frame($seq, 'E', $state));
}

# untar: feeds SIZE bytes of the driver to tar; whatever becomes of tar, all of them are taken.
sub untar {
    my ($folder, $size) = @_;
    my ($error, $feed, $data, $said, $say) = (folders($folder));
    if ($error eq '' and !(pipe($data, $feed) and pipe($said, $say))) { $error = "$!" }
    unblock($feed, $said) if $error eq '';
    my $pid = $error eq '' ? child(sub {
        open(STDIN, '<&', $data);
        open(STDOUT, '>&', $say);
        open(STDERR, '>&', $say);
        close $_ for $data, $feed, $said, $say;
        exec 'tar', '-xof', '-', '-C', $folder;
        syswrite(STDERR, "tar: $!");
    }) : undef;
    $error = "$!" if $error eq '' and !defined $pid;
    undef $data;
    undef $say;
    undef $feed unless defined $pid;
    my $status = 1;
    while ($size > 0 or defined $pid) {
        if (!defined $feed and $size > 0) { $size -= length part($size); next }
        more() if $size > 0 and !length $buffer;
        undef $feed if $size == 0;
        my ($reads, $writes) = ('', '');
        vec($reads, fileno $said, 1) = 1;
        vec($writes, fileno $feed, 1) = 1 if defined $feed;
        my $found = await($reads, $writes, 0.02);
        if ($found > 0 and defined $feed and vec($writes, fileno $feed, 1)) {
            my $most = $size < 4096 ? $size : 4096;
            my $n = syswrite($feed, $buffer, $most < length $buffer ? $most : length $buffer);
            if (defined $n) { substr($buffer, 0, $n, ''); $size -= $n }
            elsif (!again()) { undef $feed }
        }
        # Its own end counts, not that of its words: others may hold those open.
        if (waitpid($pid, $WNOHANG) == $pid) { $status = $?; undef $pid; undef $feed }
        my $n = sysread($said, my $text, 1 << 16);
        $error .= $text if $n and length $error < 4096;
    }
    return $status == 0 ? '' : $error || 'tar failed';
}

# look: what has changed below some folders since the channel came up, by the time of the inode's last change, which nobody
# inside can set. RULES, each after a NUL: `-NAME` is not gone into, `T` and a folder means what stands in it, `R` all
# below it; parts of a folder's path may hold `*`. No program of the image takes part.

# changed PATH INODE: perl knows full seconds alone; within the first one the kernel is asked for the rest.
sub changed {
    my ($path, $ctime) = @_;
    return $ctime > int $since unless $ctime == int $since;
    my $stat = "\0" x 256;
    return 1 if syscall($fstatat, -100, $path, $stat, 256) != 0;
    my ($seconds, $nano) = unpack 'x104 q q', $stat;
    return $seconds + $nano / 1e9 >= $since;
}

sub look {
    my ($seq, $rules) = @_;
    my ($seen, $found, %skip) = (0, '');
    my $walk;
    $walk = sub {
        my ($folder, $deep) = @_;
        opendir(my $handle, $folder) or return;
        for my $name (readdir $handle) {
            next if $name eq '.' or $name eq '..';
            last if ++$seen > 200_000 or length $found > 1 << 20;
            my ($path, @inode) = "$folder/$name";
            @inode = lstat $path or next;
            if (-d _) { $walk->($path, 1) if $deep and !$skip{$name} }
            elsif (changed($path, $inode[10])) { $found .= "$path\0" }
        }
    };
    for my $rule (grep { length } split /\0/, $rules) {
        my ($kind, $pattern) = unpack 'a1 a*', $rule;
        if ($kind eq '-') { $skip{$pattern} = 1; next }
        my @folders = ('');
        for my $part (grep { length } split m{/}, $pattern) {
            my @next = map { "$_/$part" } @folders;
            if (my ($before, $after) = $part =~ /^([^*]*)\*([^*]*)$/) {
                @next = ();
                for my $folder (@folders) {
                    opendir(my $handle, length $folder ? $folder : '/') or next;
                    push @next, map { "$folder/$_" } grep { /^\Q$before\E.*\Q$after\E$/ and !/^\./ } readdir $handle;
                }
            }
            @folders = grep { lstat $_ and -d _ } @next;
        }
        $walk->($_, $kind eq 'R') for @folders;
    }
    my $state = !defined $fstatat ? 'unknown' : $seen > 200_000 || length $found > 1 << 20 ? 'many' : 'ok';
    out(frame($seq, 'B') . ($state eq 'unknown' ? '' : $found) . frame($seq, 'E', $state));
}

sub told {
    my ($seq, $error) = @_;
    my ($line) = $error =~ /^([^\n\x1e]*)/;
    out(frame($seq, 'E', $error eq '' ? 0 : 1, $line));
}
