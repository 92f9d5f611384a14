"""Seccomp filter of system calls, as a program in the kernel's classic BPF. For x86_64 and aarch64.

The filter refuses listed calls, allows all others up to LAST, and answers newer calls with ENOSYS. An allow-list would
cover more of the kernel, but break programs with each new C library. Refused are calls that affect other processes,
mounts, namespaces, keys, kernel modules or clocks, and calls for memory that no limit counts. Also refused are calls
that reveal accesses to files of the machine, and interfaces with many past kernel bugs (bpf, io_uring, userfaultfd,
perf). Some calls are refused depending on their arguments: those that name another process, sockets other than Unix
sockets, larger socket buffers, and shared anonymous memory.
"""

import ctypes
import errno
import os
import struct

from rlhf_lab.packs.code.sandbox.jail import syscalls

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
"""Bit of x32 system calls, which would bypass a list of x86_64 numbers."""
LAST = 450
"""Number of the newest system call that the lists below cover."""

REFUSED = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "ioprio_set": (251, 30),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    # keys and kernel interfaces with many past faults
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # the libraries are files of the machine, so a watch or lock on one affects or observes all other processes
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "inotify_rm_watch": (255, 28), "flock": (73, 32),
    # memory that RLIMIT_AS does not count once it is unmapped or passed to the kernel
    "vmsplice": (278, 75),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "shmdt": (67, 197), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192), "semctl": (66, 191),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
    # settings of the entire machine
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "sethostname": (170, 161), "setdomainname": (171, 162), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
    "personality": (135, 92), "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42),
    "vhangup": (153, 58), "uselib": (134, None), "ustat": (136, None), "sysfs": (139, None), "_sysctl": (156, None),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
"""Numbers of refused calls on x86_64 and aarch64; None if the architecture does not have the call."""
CLONE, CLONE3 = (56, 220), (435, 435)
SOCKETS = {"socket": (41, 198), "socketpair": (53, 199)}
AF_UNIX = 1  # address family of local sockets
MMAP, FCNTL = (9, 222), (72, 25)
SHARED_ANONYMOUS = 0x21
"""Flags MAP_SHARED and MAP_ANONYMOUS; MAP_SHARED_VALIDATE includes the first. As long as one page is mapped, all of
this memory remains allocated, but neither RLIMIT_AS nor the resident size counts it."""
FCNTL_REFUSED = {"F_SETLEASE": 1024, "F_NOTIFY": 1026, "F_SETPIPE_SZ": 1031}
"""Refused commands of `fcntl`: those that reveal accesses to files of the machine, and larger pipes, which use kernel
memory."""
SETSOCKOPT = (54, 208)
SOCKET_OPTIONS_REFUSED = {"SO_SNDBUF": 7, "SO_SNDBUFFORCE": 32}
"""Refused socket options. Data waiting in sockets uses kernel memory: 0.2 MiB per socket by default, and much more with
these options."""
OF_ITSELF = {
    "prlimit64": ((302, 261), (0,)), "sched_setparam": ((142, 118), (0,)), "sched_setscheduler": ((144, 119), (0,)),
    "sched_setaffinity": ((203, 122), (0,)), "sched_setattr": ((314, 274), (0,)), "setpriority": ((141, 140), (0, 1)),
}  # fmt: skip
"""Calls that change a process given by its id: numbers of the call, and the arguments that must be 0.

The id 0 means the caller, and `which` 0 of setpriority means a process. In the sandbox of an ordinary user, process 1
has the uid of the program, so the kernel would let the program change its limits.
"""

NAMESPACE_FLAGS = 0x7E020000
"""All CLONE_NEW… flags of `clone`; CLONE_NEWTIME only exists for clone3 and unshare."""

LOAD, AND, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_BIT_SET, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCH_AT, ARGUMENTS_AT = 0, 4, 16
"""Offsets in struct seccomp_data. The filter reads the lower half of an argument (little-endian). This is sufficient,
because the checked arguments are 32-bit integers, or flags in the lower half."""
KILL, ALLOW, ERRNO = 0x80000000, 0x7FFF0000, 0x00050000


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Encode a BPF instruction; `if_true` and `if_false` are the numbers of instructions that a jump skips."""
    return struct.pack("HBBI", code, if_true, if_false, value)


def _refuse(number: int, error: int) -> bytes:
    """Return two instructions that answer one call with an error, and continue for any other call."""
    return _instruction(JUMP_EQUAL, number, 0, 1) + _instruction(RETURN, ERRNO | error)


def _check(number: int, checks: bytes) -> bytes:
    """Return instructions that run `checks` for one call, and allow it unless they return. Other calls skip them."""
    block = checks + _instruction(RETURN, ALLOW)
    return _instruction(JUMP_EQUAL, number, 0, len(block) // 8) + block


def _load_argument(position: int) -> bytes:
    return _instruction(LOAD, ARGUMENTS_AT + 8 * position)


def program(machine: str) -> bytes:
    """Return the filter for an architecture (name of `os.uname`). Raises OSError (ENOTSUP) if it is not supported."""
    if machine not in AUDIT_ARCH:
        raise OSError(errno.ENOTSUP, f"the filter of system calls supports {', '.join(AUDIT_ARCH)}, not {machine}")
    column = list(AUDIT_ARCH).index(machine)
    kill = _instruction(RETURN, KILL)
    # A call of another architecture, such as a 32-bit call on x86_64, has other numbers than those checked below.
    code = _instruction(LOAD, ARCH_AT)
    code += _instruction(JUMP_EQUAL, AUDIT_ARCH[machine], 1, 0) + kill
    code += _instruction(LOAD, NUMBER_AT)
    if machine == "x86_64":  # calls of the x32 ABI have the same architecture, and numbers with this bit
        code += _instruction(JUMP_GREATER_EQUAL, X32_BIT, 0, 1) + kill
    # Calls that are newer than this table do not exist for the program, so that libraries use older ones.
    code += _instruction(JUMP_GREATER_EQUAL, LAST + 1, 0, 1) + _instruction(RETURN, ERRNO | errno.ENOSYS)
    # The flags of clone3 are in memory, which a filter cannot read. After ENOSYS the C library uses clone instead;
    # after EPERM it would give up, and no thread could start.
    code += _refuse(CLONE3[column], errno.ENOSYS)
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            code += _refuse(number, errno.EPERM)
    refused = _instruction(RETURN, ERRNO | errno.EPERM)
    makes_namespace = _load_argument(0) + _instruction(JUMP_BIT_SET, NAMESPACE_FLAGS, 0, 1)
    code += _check(CLONE[column], makes_namespace + refused)
    # Only Unix sockets are allowed, for communication between the program's own processes. vsock bypasses network
    # namespaces and reaches the host of a virtual machine, and tasks do not need the kernel code of other families.
    is_unix = _load_argument(0) + _instruction(JUMP_EQUAL, AF_UNIX, 1, 0)
    for numbers in SOCKETS.values():
        code += _check(numbers[column], is_unix + _instruction(RETURN, ERRNO | errno.EACCES))
    for numbers, arguments in OF_ITSELF.values():
        checks = b""
        for position in arguments:  # 0 stands for the calling process itself
            checks += _load_argument(position) + _instruction(JUMP_EQUAL, 0, 1, 0) + refused
        code += _check(numbers[column], checks)
    by_value = ((FCNTL, 1, FCNTL_REFUSED), (SETSOCKOPT, 2, SOCKET_OPTIONS_REFUSED))
    for numbers, position, values in by_value:
        checks = _load_argument(position)
        for value in values.values():
            checks += _instruction(JUMP_EQUAL, value, 0, 1) + refused
        code += _check(numbers[column], checks)
    # Both flags must be set, so the masked value is compared; JUMP_BIT_SET would accept one of them.
    flags = _load_argument(3) + _instruction(AND, SHARED_ANONYMOUS)
    is_shared = flags + _instruction(JUMP_EQUAL, SHARED_ANONYMOUS, 0, 1)
    code += _check(MMAP[column], is_shared + refused)
    return code + _instruction(RETURN, ALLOW)


def install() -> None:
    """Install the filter for this process and its descendants, irrevocably. Requires PR_SET_NO_NEW_PRIVS."""
    code = program(os.uname().machine)
    instructions = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):  # struct sock_fprog of linux/filter.h
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    count = len(code) // 8  # a struct sock_filter has 8 bytes
    filter_program = Program(count, ctypes.addressof(instructions))
    syscalls.prctl(syscalls.PR_SET_SECCOMP, syscalls.SECCOMP_MODE_FILTER, ctypes.byref(filter_program))
