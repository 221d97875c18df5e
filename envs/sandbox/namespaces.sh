#!/bin/sh
# The embedded sandbox without bubblewrap: builds its root and becomes its init. Run by `unshare` as user 0 of a new user
# namespace with new mounts and a new process table:
#
#     sh namespaces.sh NEWROOT WORKDIR ETC PREFIX SIZE FILTER PRCTL LOADER SWITCH... -- NAME=VALUE...
#
# PREFIX is shown read-only at its own path, or "-"; FILTER is the descriptor of a filter of system calls that perl's
# LOADER loads by the call PRCTL, or "-"; each SWITCH is a file or folder of /proc to show read-only. Same view
# as the bubblewrap command in namespaces.py. The sandbox's shell gets no capabilities; it is the init: when it ends, so
# does everything else in the process table.
set -e
root=$1 workdir=$2 etc=$3 prefix=$4 size=$5 filter=$6 prctl=$7 loader=$8
shift 8
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

show() { # PATH: read-only at the same place
    mkdir -p "$root$1"
    mount --rbind "$1" "$root$1"
    mount -o remount,bind,ro,nosuid "$root$1" 2>/dev/null || mount -o remount,bind,ro,nosuid,nodev "$root$1"
}
space() { # PATH
    mkdir -p "$root$1"
    mount -t tmpfs -o "size=$size,mode=755,nosuid,nodev" tmpfs "$root$1"
}

echo 0 >/proc/sys/user/max_user_namespaces # of this user namespace: none inside it
mount -t tmpfs -o "size=16m,mode=755" tmpfs "$root"
for path in /usr /bin /sbin /lib /lib32 /lib64 /libx32; do
    if [ -L "$path" ]; then ln -s "$(readlink "$path")" "$root$path"; elif [ -d "$path" ]; then show "$path"; fi
done
space /tmp
space /root
mkdir -p "$root/run" "$root/var/tmp" "$root/etc" "$root/dev" "$root/proc"
cp -RP "$etc/." "$root/etc/"
[ "$prefix" = - ] || show "$prefix"
mount -t tmpfs -o "size=64k,mode=755,nosuid" tmpfs "$root/dev"
for name in null zero full random urandom tty; do
    : >"$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
space /dev/shm
mount -o remount,bind,ro,nosuid "$root/dev"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
while [ "$1" != -- ]; do
    mount --bind "$root$1" "$root$1"
    mount -o remount,bind,ro,nosuid,nodev,noexec "$root$1"
    shift
done
shift
space "$workdir"
mkdir "$root/.old"
cd "$root"
pivot_root . .old
cd /
umount -l /.old
rmdir /.old
mount -o remount,bind,ro /
hostname sandbox 2>/dev/null || true
set -- env -i "$@" /bin/sh
[ "$filter" = - ] || set -- perl -e "$loader" "$filter" "$prctl" "$@"
exec setpriv --bounding-set -all --inh-caps -all --ambient-caps -all --no-new-privs "$@"
