"""System calls that a sandbox's commands may make: one table for both backends' filters.

It follows what Docker's default filter leaves a container without capabilities, and is stricter where a call reaches
the channel (process 1), other processes' limits and turns, or a limit of the kernel that this machine's users share.
Every call up to NEWEST is in exactly one of the tables (a test holds them against the kernel's headers); a later one
does not exist for a sandbox.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass

Numbers = tuple[int | None, int | None]
"""(x86_64, aarch64); from 424 on all machines count alike."""
NEWEST = 450


@dataclass(frozen=True)
class Is:
    """The argument is `value`; with a mask, its bits under the mask are."""

    argument: int
    value: int
    mask: int = 0


@dataclass(frozen=True)
class Not:
    """The argument (32 bits of it count) is not `value`."""

    argument: int
    value: int


Test = Is | Not
INIT = 1
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_PROCESS, _GROUP = 0, 1  # setpriority's; ioprio_set's are one higher
_SELF = Is(0, 0)

ALLOWED_IF: Mapping[str, tuple[Numbers, tuple[tuple[Test, ...], ...]]] = {
    # name: numbers, and alternatives: all tests of one hold
    "clone": ((56, 220), ((Is(0, 0, NEW_NAMESPACES),),)),
    "ioprio_set": ((251, 30), ((Is(0, _PROCESS + 1), Is(1, 0)), (Is(0, _GROUP + 1), Is(1, 0)))),
    "personality": ((135, 92), tuple((Is(0, each),) for each in (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF))),
    "prlimit64": ((302, 261), ((_SELF,), (Is(2, 0),))),  # the second: only asks
    "ptrace": ((101, 117), ((Not(1, INIT),),)),
    "sched_setaffinity": ((203, 122), ((Not(0, INIT),),)),  # threads set each other's when they are made
    "sched_setattr": ((314, 274), ((_SELF,),)),
    "sched_setparam": ((142, 118), ((_SELF,),)),
    "sched_setscheduler": ((144, 119), ((_SELF,),)),
    "setpriority": ((141, 140), ((Is(0, _PROCESS), Is(1, 0)), (Is(0, _GROUP), Is(1, 0)))),
    # AF_UNIX, INET, INET6, NETLINK, PACKET: those that a network namespace cuts. AF_VSOCK is not cut by any.
    "socket": ((41, 198), tuple((Is(0, each),) for each in (1, 2, 10, 16, 17))),
}

ABSENT: Mapping[int, Mapping[str, Numbers]] = {
    # clone3's flags lie where no filter can read them; every C library then takes clone. AIO contexts are counted for
    # the whole machine; programs go on without, as on a kernel that has none.
    errno.ENOSYS: {"clone3": (435, 435), "io_setup": (206, 0)},
}
WATCHES: Mapping[str, Numbers] = {"inotify_init": (253, None), "inotify_init1": (294, 26)}
"""Instances are counted by user, and this machine's root is the same one: EMFILE, as if none were left, unless the
limit is so high that memory comes first."""

REFUSED: Mapping[str, Numbers] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_mempolicy": (239, 236),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "pkey_alloc": (330, 289),
    "pkey_free": (331, 290),
    "pkey_mprotect": (329, 288),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}
"""EPERM, whoever asks."""

UNKNOWN: Mapping[str, Numbers] = {
    "_sysctl": (156, None),
    "afs_syscall": (183, None),
    "create_module": (174, None),
    "get_kernel_syms": (177, None),
    "getpmsg": (181, None),
    "nfsservctl": (180, 42),
    "putpmsg": (182, None),
    "query_module": (178, None),
    "security": (185, None),
    "tuxcall": (184, None),
    "vserver": (236, None),
}
"""No kernel has them any more."""

ALLOWED = """
accept accept4 access adjtimex alarm arch_prctl bind brk capget capset chdir chmod chown clock_getres clock_gettime
clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl
epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group
faccessat faccessat2 fadvise64 fallocate fanotify_mark fchdir fchmod fchmodat fchown fchownat fcntl fdatasync
fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_waitv futimesat
get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer
getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid
getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch inotify_rm_watch io_cancel io_destroy
io_getevents io_pgetevents io_submit ioctl ioprio_get kill lchown lgetxattr link linkat listen listxattr llistxattr
lremovexattr lseek lsetxattr lstat madvise membarrier memfd_create mincore mkdir mkdirat mknod mknodat mlock mlock2
mlockall mmap modify_ldt mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap
msgctl msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause
pidfd_open pidfd_send_signal pipe pipe2 poll ppoll prctl pread64 preadv preadv2 pselect6 pwrite64 pwritev pwritev2
read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat
renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity
sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_yield seccomp select semctl semget semop
semtimedop sendfile sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid
setgroups setitimer setpgid setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr shmat
shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socketpair splice stat statfs statx symlink symlinkat
sync sync_file_range sync_file_range2 syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun
timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink
unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write writev
""".split()  # noqa: SIM905

ALLOWED_32_BIT = """
_llseek _newselect arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush chown32 clock_getres_time64
clock_gettime64 clock_nanosleep_time64 fadvise64_64 fchown32 fcntl64 fstat64 fstatat64 fstatfs64 ftruncate64
futex_time64 getegid32 geteuid32 getgid32 getgroups32 getresgid32 getresuid32 getuid32 io_pgetevents_time64 ipc
lchown32 lstat64 mmap2 mq_timedreceive_time64 mq_timedsend_time64 ppoll_time64 pselect6_time64 recv recvmmsg_time64
rt_sigtimedwait_time64 sched_rr_get_interval_time64 semtimedop_time64 send sendfile64 set_tls setfsgid32 setfsuid32
setgid32 setgroups32 setregid32 setresgid32 setresuid32 setreuid32 setuid32 sigprocmask sigreturn stat64 statfs64
timer_gettime64 timer_settime64 timerfd_gettime64 timerfd_settime64 truncate64 ugetrlimit utimensat_time64 waitpid
""".split()  # noqa: SIM905
"""Further names of i386 and arm, for containers of 32-bit programs. Not socketcall: its arguments lie where no filter
can read them."""
