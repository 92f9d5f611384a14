"""The files that a program in the namespaces sees: the interpreter and its libraries, read-only, and its own folder.

There is no /proc, no /sys, no home, no shell and no /etc but two files that say nothing of the machine.
"""

import os

from rlhf_lab.packs.code.sandbox.jail import syscalls

BASE = "/tmp"
"""Where the new root is put together; any folder does, and what lies in it stays reachable below OLD."""
OLD, NEW, DISK = "/old", "/new", "/disk"
DEVICES = ("null", "full", "random", "urandom")
"""Without zero, whose shared mappings no limit counts. /dev/zero is a link to full, which reads alike."""
WRITABLE = ("work", "tmp", "shm")
"""Folders of the one file system that is the program's disk: /work, /tmp and /dev/shm."""
READ_ONLY = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
PLAIN = syscalls.MS_NOSUID | syscalls.MS_NODEV
FILES_PER_MIB = 64
"""Files and folders that fit on a MiB of disk: each takes memory of the kernel as well."""


def enter_root(spec: dict) -> None:
    """Make the program's root from `spec` (see `launch.py`) and move into it; nothing of the old one stays mounted."""
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", BASE, "tmpfs", PLAIN, "size=1m,mode=755")
    os.mkdir(BASE + OLD)
    syscalls.pivot_root(BASE, BASE + OLD)
    os.chdir("/")
    os.mkdir(NEW)
    syscalls.mount("tmpfs", NEW, "tmpfs", PLAIN, "size=1m,mode=755")
    for path in spec["read_only"]:
        _bind(path, READ_ONLY)
    for path in spec["hidden"]:
        syscalls.mount("tmpfs", NEW + path, "tmpfs", PLAIN | syscalls.MS_RDONLY, "size=4k,mode=755")
    for path, target in spec["links"]:
        os.makedirs(os.path.dirname(NEW + path), exist_ok=True)
        os.symlink(target, NEW + path)
    _write(NEW + "/etc/passwd", f"sandbox:x:{spec['uid']}:{spec['uid']}::/work:/none\n")
    _write(NEW + "/etc/group", f"sandbox:x:{spec['uid']}:\n")
    os.makedirs(NEW + "/dev", exist_ok=True)
    for name in DEVICES:
        _bind(f"/dev/{name}", syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_RDONLY)
    os.symlink("full", NEW + "/dev/zero")
    _mount_disk(spec["disk_mib"], spec["uid"])
    syscalls.protect_mount(NEW, syscalls.MOUNT_ATTR_RDONLY, recursive=False)
    os.chdir(NEW)
    syscalls.pivot_root(".", ".")  # the old root is now mounted over the new one
    syscalls.detach_mount(".")
    os.chdir("/")


def _bind(path: str, attributes: int) -> None:
    """Show a file or folder of the old root at the same path of the new one."""
    source, target = OLD + path, NEW + path
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        _write(target, "")
    syscalls.mount(source, target, "", syscalls.MS_BIND | syscalls.MS_REC)
    syscalls.protect_mount(target, attributes, recursive=True)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _mount_disk(mib: int, uid: int) -> None:
    """One file system of a limited size for all that the program may write."""
    os.mkdir(DISK)
    syscalls.mount("tmpfs", DISK, "tmpfs", PLAIN, f"size={mib}m,nr_inodes={mib * FILES_PER_MIB + 64},mode=755")
    for name, target in zip(WRITABLE, ("/work", "/tmp", "/dev/shm"), strict=True):
        os.mkdir(f"{DISK}/{name}", 0o700)
        os.chown(f"{DISK}/{name}", uid, uid)
        os.makedirs(NEW + target, exist_ok=True)
        syscalls.mount(f"{DISK}/{name}", NEW + target, "", syscalls.MS_BIND)
        syscalls.protect_mount(NEW + target, syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV, recursive=False)
