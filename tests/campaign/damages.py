"""Faults of disks in files and directories: damage, no space, no permission. Each says whether it is possible here."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

MIB = 2**20
AMPLE = 256 * MIB


def truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def emptied(data: bytes, rng: random.Random) -> bytes:
    return b""


def bit_flipped(data: bytes, rng: random.Random) -> bytes:
    position, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
    return data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :]


def zeroed(data: bytes, rng: random.Random) -> bytes:
    """A block of zeros, as a disk gives for what it never wrote."""
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.randrange(1, 4096))
    return data[:start] + bytes(end - start) + data[end:]


def garbled(data: bytes, rng: random.Random) -> bytes:
    """Some bytes are others, not UTF-8 mostly."""
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.randrange(1, 64))
    return data[:start] + rng.randbytes(end - start) + data[end:]


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (truncated, emptied, bit_flipped, zeroed, garbled)


def damage(path: Path, rng: random.Random) -> str:
    """Change a file, or delete it; returns how."""
    if rng.random() < 0.1:
        path.unlink()
        return f"{path.name} deleted"
    before = path.read_bytes()
    after, way = before, rng.choice(DAMAGES)
    while after == before:
        after = way(before, rng)
    path.write_bytes(after)
    return f"{path.name} {way.__name__.replace('_', '-')}"


class Disk:
    """A small file system in memory (tmpfs), mounted at a folder: it can be full and it can be read-only."""

    def __init__(self, directory: Path):
        self.directory = directory

    def __enter__(self) -> Disk:
        _run("mount", "-t", "tmpfs", "-o", f"size={AMPLE}", "tmpfs", str(self.directory))
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", str(self.directory))

    def leave(self, free: int) -> None:
        """Only so many bytes more."""
        found = os.statvfs(self.directory)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        _run("mount", "-o", f"remount,size={used + free}", str(self.directory))

    def give_space(self) -> None:
        _run("mount", "-o", f"remount,size={AMPLE}", str(self.directory))

    def read_only(self, flag: bool) -> None:
        _run("mount", "-o", f"remount,{'ro' if flag else 'rw'}", str(self.directory))


def revoke(directory: Path) -> None:
    """From now on nothing in a folder can be changed: immutable for root, whom permissions do not bind."""
    if os.geteuid() == 0:
        _run("chattr", "-R", "+i", str(directory))
    else:
        _run("chmod", "-R", "a-w", str(directory))


def grant(directory: Path) -> None:
    """Inverse of `revoke`."""
    if os.geteuid() == 0:
        _run("chattr", "-R", "-i", str(directory))
    else:
        _run("chmod", "-R", "u+w", str(directory))


@cache
def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as directory:
        try:
            with Disk(Path(directory)) as disk:
                disk.read_only(True)
        except (OSError, subprocess.CalledProcessError):
            return False
    return True


def can_revoke(directory: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=directory) as inner:
        try:
            revoke(Path(inner))
            grant(Path(inner))
        except (OSError, subprocess.CalledProcessError):
            return False
    return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
