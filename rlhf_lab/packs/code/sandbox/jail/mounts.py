"""File system of a program in namespaces: the interpreter and its libraries, read-only, and its own directory.

There is no /proc, no /sys, no home directory and no shell. /etc only has two files without information about the
machine.
"""

import os

from rlhf_lab.packs.code.sandbox.jail import syscalls

BASE = "/tmp"
"""Directory in which the new root is built. Any directory works, and its content stays reachable below OLD."""
OLD, NEW, DISK = "/old", "/new", "/disk"
DEVICES = ("null", "full", "random", "urandom")
"""Devices of the program. /dev/zero is excluded, because no limit counts its shared mappings. It is a link to
/dev/full, which also reads as zeros."""
WRITABLE = ("work", "tmp", "shm")
"""Directories of the single file system that is the program's disk."""
DISK_FOLDERS = ("/work", "/tmp", "/dev/shm")
"""Mount points of these directories for the program. They hide the content of the machine."""
READ_ONLY = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
PLAIN = syscalls.MS_NOSUID | syscalls.MS_NODEV
FILES_PER_MIB = 64
"""Maximum number of files and directories per MiB of disk, because each of them also uses kernel memory."""


def enter_root(spec: dict) -> None:
    """Build the program's root from `spec` (see `launch.py`) and enter it. The old root is unmounted completely."""
    # private: mounts in this namespace must not propagate to the machine
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", BASE, "tmpfs", PLAIN, "size=1m,mode=755")
    os.mkdir(BASE + OLD)
    syscalls.pivot_root(BASE, BASE + OLD)
    os.chdir("/")
    os.mkdir(NEW)
    syscalls.mount("tmpfs", NEW, "tmpfs", PLAIN, "size=1m,mode=755")
    for path in spec["read_only"]:
        _bind(path, READ_ONLY)
    # an empty read-only file system hides installed packages
    for path in spec["hidden"]:
        syscalls.mount("tmpfs", NEW + path, "tmpfs", PLAIN | syscalls.MS_RDONLY, "size=4k,mode=755")
    for path, target in spec["links"]:
        os.makedirs(os.path.dirname(NEW + path), exist_ok=True)
        os.symlink(target, NEW + path)
    # some functions of Python's library need a user entry
    _write(NEW + "/etc/passwd", f"sandbox:x:{spec['uid']}:{spec['uid']}::/work:/none\n")
    _write(NEW + "/etc/group", f"sandbox:x:{spec['uid']}:\n")
    os.makedirs(NEW + "/dev", exist_ok=True)
    for name in DEVICES:
        _bind(f"/dev/{name}", syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_RDONLY)
    os.symlink("full", NEW + "/dev/zero")
    _mount_disk(spec["disk_mib"], spec["uid"])
    syscalls.protect_mount(NEW, syscalls.MOUNT_ATTR_RDONLY, recursive=False)
    os.chdir(NEW)
    syscalls.pivot_root(".", ".")  # the old root is now mounted on top of the new one, and can be detached
    syscalls.detach_mount(".")
    os.chdir("/")


def _bind(path: str, attributes: int) -> None:
    """Bind-mount a file or directory of the old root at the same path of the new root."""
    source, target = OLD + path, NEW + path
    # the target of a bind mount must exist, and be of the same kind
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
    """Mount one file system of limited size for all writable directories of the program."""
    os.mkdir(DISK)
    syscalls.mount("tmpfs", DISK, "tmpfs", PLAIN, f"size={mib}m,nr_inodes={mib * FILES_PER_MIB + 64},mode=755")
    for name, target in zip(WRITABLE, DISK_FOLDERS, strict=True):
        os.mkdir(f"{DISK}/{name}", 0o700)
        os.chown(f"{DISK}/{name}", uid, uid)
        os.makedirs(NEW + target, exist_ok=True)
        syscalls.mount(f"{DISK}/{name}", NEW + target, "", syscalls.MS_BIND)
        # a bind mount ignores other flags of `mount`, so they are set afterwards
        syscalls.protect_mount(NEW + target, syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV, recursive=False)
