"""Definition of a probe, an attack on the sandbox.

Each probe prints what it reached ("ESCAPED: …") or what stopped it ("stopped: …"), and `targets.py` also checks its
effects from outside. Probes are bounded, so that they are harmless if nothing stops them. For example, the fork bomb
only exceeds the limit by a small factor, and the signal to all processes is signal 0.
"""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass

from rlhf_lab.packs.code.sandbox.jail.seccomp import AUDIT_ARCH, CLONE3, OF_ITSELF, REFUSED, SOCKETS

PRELUDE = """
import ctypes, errno, mmap, os, resource, signal, socket, stat, sys, time
NUMBERS = {numbers}
TARGETS = {targets}
libc = ctypes.CDLL(None, use_errno=True)

def escaped(what):
    print("ESCAPED:", what, flush=True)
    os._exit(0)

def stopped(by):
    print("stopped:", by, flush=True)
    os._exit(0)

def call(name, *arguments):
    # A system call that should not get through: refused by the filter, or by rights that are missing.
    longs = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *longs)
    code = errno.errorcode.get(ctypes.get_errno(), "?")
    if result >= 0 or code not in ("EPERM", "ENOSYS", "EACCES"):
        escaped(name + (" succeeds" if result >= 0 else " reaches the kernel: " + code))
    stopped(name + ": " + code)

def read(path):
    with open(path, "rb") as file:
        return file.read(1 << 16)

def attack():
{body}

try:
    attack()
except (Exception, SystemExit) as error:
    stopped(type(error).__name__ + ": " + str(error)[:80])
stopped("nothing was reached")
"""


@dataclass(frozen=True)
class Probe:
    """One attack.

    Attributes:
        name: description of the attack.
        kind: category of the target.
        body: Python statements; `escaped`, `stopped`, `call`, `read` and `TARGETS` are defined.
        limit: expected status if a limit of the sandbox must stop it; empty otherwise.
        keep: True to read back its files and start another program with them.
    """

    name: str
    kind: str
    body: str
    limit: str = ""
    keep: bool = False

    def program(self, targets: dict[str, object]) -> str:
        """Return the complete program of the attack, given the targets (`ProbeTargets.values`)."""
        machine = os.uname().machine
        column = list(AUDIT_ARCH).index(machine) if machine in AUDIT_ARCH else 0
        of_itself = {name: pair for name, (pair, _) in OF_ITSELF.items()}
        pairs = {**REFUSED, **of_itself, **SOCKETS, "clone3": CLONE3}
        numbers = {name: pair[column] for name, pair in pairs.items()}
        lines = textwrap.indent(textwrap.dedent(self.body).strip(), "    ")
        # `replace` instead of `format`, because the prelude and the bodies contain braces
        program = PRELUDE.replace("{numbers}", repr(numbers))
        program = program.replace("{targets}", repr(targets))
        return program.replace("{body}", lines)


def reads(name: str, kind: str, path: str) -> Probe:
    """Return a probe that reads a file; `path` is a Python expression."""
    return Probe(name, kind, f"escaped(str(len(read({path}))) + ' bytes')")


def calls(name: str, arguments: str, kind: str = "kernel") -> Probe:
    """Return a probe that makes one system call."""
    return Probe(name, kind, f"call({name!r}, {arguments})")
