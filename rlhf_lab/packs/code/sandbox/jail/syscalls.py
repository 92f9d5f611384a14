"""System calls without a function in Python 3.11, called through the C library. Linux on x86_64 and aarch64."""

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
EVERY_NAMESPACE = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
"""Flags of all namespaces except the user namespace, which root does not use."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

NUMBERS = {"pivot_root": {"x86_64": 155, "aarch64": 41}, "mount_setattr": {"x86_64": 442, "aarch64": 442}}
AT_FDCWD = -100
AT_RECURSIVE = 0x8000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> None:
    """Raise OSError with errno and the name of the call if the result is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces. CLONE_NEWPID applies to its next child instead."""
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode() or None)
    _check(result, f"mount {kind or source} on {target}")


def protect_mount(target: str, attributes: int, *, recursive: bool) -> None:
    """Add attributes such as read-only to a mount and optionally to all mounts below it. Requires Linux 5.12.

    Unlike a remount, this does not have to repeat the existing flags, which a user namespace may not clear.
    """
    arguments = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)  # struct mount_attr: set, clear, propagation, user namespace
    result = _libc.syscall(
        ctypes.c_long(NUMBERS["mount_setattr"][os.uname().machine]),
        ctypes.c_int(AT_FDCWD),
        ctypes.c_char_p(target.encode()),
        ctypes.c_uint(AT_RECURSIVE if recursive else 0),
        arguments,
        ctypes.c_size_t(ctypes.sizeof(arguments)),
    )
    _check(result, f"mount_setattr of {target} (Linux 5.12 or newer)")


def detach_mount(target: str) -> None:
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    # the C library has no wrapper for this call
    number = ctypes.c_long(NUMBERS["pivot_root"][os.uname().machine])
    paths = ctypes.c_char_p(new_root.encode()), ctypes.c_char_p(put_old.encode())
    _check(_libc.syscall(number, *paths), "pivot_root")


def prctl(option: int, value: int = 0, pointer: object = 0) -> None:
    zero = ctypes.c_ulong(0)
    argument = ctypes.c_ulong(0) if pointer == 0 else pointer
    result = _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), argument, zero, zero)
    _check(result, f"prctl({option})")


def drop_bounding_set() -> None:
    """Drop all capabilities from the bounding set, so that executing a program cannot gain them."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # EINVAL: the kernel has no capability with this number or a larger one
            break


def set_hostname(name: str) -> None:
    _check(_libc.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")
