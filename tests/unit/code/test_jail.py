"""The filter of system calls on both machines, the control groups of both versions, and the layout."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from rlhf_lab.packs.code.sandbox import groups, levels
from rlhf_lab.packs.code.sandbox.jail import launch, mounts, seccomp, syscalls
from rlhf_lab.packs.code.sandbox.outcome import ProgramLimits

LIMITS = ProgramLimits(wall_s=1.0, cpu_s=1.0, memory_mib=100, disk_mib=10, processes=5, output_kib=1)


def verdict(code: bytes, arch: int, number: int, *arguments: int) -> int:
    """Return the answer of the kernel's machine: an interpreter of the few instructions that the filter has."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    position, accumulator = 0, 0
    while True:
        operation, if_true, if_false, value = struct.unpack_from("<HBBI", code, 8 * position)
        position += 1
        if operation == seccomp.LOAD:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif operation == seccomp.AND:
            accumulator &= value
        elif operation == seccomp.RETURN:
            return value
        else:
            holds = {
                seccomp.JUMP_EQUAL: accumulator == value,
                seccomp.JUMP_GREATER_EQUAL: accumulator >= value,
                seccomp.JUMP_BIT_SET: bool(accumulator & value),
            }[operation]
            position += if_true if holds else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_its_table_says(machine):
    code, arch = seccomp.program(machine), seccomp.AUDIT_ARCH[machine]
    column = list(seccomp.AUDIT_ARCH).index(machine)
    refused = {pair[column] for pair in seccomp.REFUSED.values()} - {None}
    special = {seccomp.CLONE3[column], *(pair[column] for pair in seccomp.SOCKETS.values())}
    for number in range(seccomp.LAST + 1):
        if number in refused:
            assert verdict(code, arch, number) == seccomp.ERRNO | errno.EPERM, number
        elif number not in special:
            assert verdict(code, arch, number) == seccomp.ALLOW, number
    assert verdict(code, arch, seccomp.CLONE3[column]) == seccomp.ERRNO | errno.ENOSYS
    assert verdict(code, arch, seccomp.LAST + 1) == seccomp.ERRNO | errno.ENOSYS
    thread, namespace = 0x003D0F00, syscalls.CLONE_NEWUSER | 17
    assert verdict(code, arch, seccomp.CLONE[column], thread) == seccomp.ALLOW
    assert verdict(code, arch, seccomp.CLONE[column], namespace) == seccomp.ERRNO | errno.EPERM
    for socket in seccomp.SOCKETS.values():
        assert verdict(code, arch, socket[column], 1) == seccomp.ALLOW
        for family in (2, 10, 16, 17, 40):  # inet, inet6, netlink, packet, vsock
            assert verdict(code, arch, socket[column], family) == seccomp.ERRNO | errno.EACCES
    assert verdict(code, 0x40000003, 1) == seccomp.KILL  # the calls of a 32-bit program have other numbers


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_reads_the_arguments_that_its_tables_name(machine):
    code, arch = seccomp.program(machine), seccomp.AUDIT_ARCH[machine]
    column = list(seccomp.AUDIT_ARCH).index(machine)
    refused = seccomp.ERRNO | errno.EPERM
    for numbers, zeros in seccomp.OF_ITSELF.values():
        assert verdict(code, arch, numbers[column], 0, 0, 7) == seccomp.ALLOW
        assert verdict(code, arch, numbers[column], 2**40, 0, 7) == seccomp.ALLOW  # a process number has 32 bits
        for position in zeros:
            arguments = [0, 0, 7]
            for other in (1, 4711, 2**32 - 1):
                arguments[position] = other
                assert verdict(code, arch, numbers[column], *arguments) == refused
    fcntl, mmap = seccomp.FCNTL[column], seccomp.MMAP[column]
    for command in (1024, 1026, 1031):  # F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ
        assert verdict(code, arch, fcntl, 3, command) == refused
    for command in (0, 2, 5, 6, 7, 1030, 1033):  # descriptors, flags, locks of records
        assert verdict(code, arch, fcntl, 3, command) == seccomp.ALLOW
    for option, answer in ((7, refused), (32, refused), (8, seccomp.ALLOW), (20, seccomp.ALLOW)):  # SO_SNDBUF, …
        assert verdict(code, arch, seccomp.SETSOCKOPT[column], 3, 1, option) == answer
    shared, private, validated, anonymous = 1, 2, 3, 0x20
    for flags in (shared | anonymous, validated | anonymous, shared | anonymous | 0x8000):
        assert verdict(code, arch, mmap, 0, 4096, 3, flags) == refused
    for flags in (private | anonymous, private, shared, validated):
        assert verdict(code, arch, mmap, 0, 4096, 3, flags) == seccomp.ALLOW


def test_numbers_of_the_x32_calls_are_refused_and_other_machines_have_no_filter():
    code, arch = seccomp.program("x86_64"), seccomp.AUDIT_ARCH["x86_64"]
    assert verdict(code, arch, seccomp.X32_BIT | 101) == seccomp.KILL
    with pytest.raises(OSError, match="riscv64"):
        seccomp.program("riscv64")


def test_the_layout_hides_packages_and_shows_no_folder_of_data():
    shown = levels.layout()
    assert os.path.isfile(shown.python) and shown.python in shown.read_only
    assert not any(path in ("/", "/etc", "/home", "/root", "/usr", "/tmp", "/proc") for path in shown.read_only)
    assert all("packages" in path for path in shown.hidden)
    assert mounts.WRITABLE == ("work", "tmp", "shm") and launch.OPEN_FILES == 64


@pytest.fixture
def fake_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(groups, "ROOT", tmp_path)
    monkeypatch.setattr(groups, "OWN", tmp_path / "own")
    return tmp_path


def test_groups_of_version_1(fake_groups):
    for controller in ("memory", "pids"):
        (fake_groups / controller / "job").mkdir(parents=True)
    (fake_groups / "own").write_text("4:memory:/job\n8:pids:/job\n0::/\n")
    group = groups.create(LIMITS)
    assert group is not None
    memory, pids = group.folders
    assert memory.parent == fake_groups / "memory" / "job" and pids.parent == fake_groups / "pids" / "job"
    assert (memory / "memory.limit_in_bytes").read_text() == str((100 + 10 + groups.OWN_MEMORY_MIB) << 20)
    assert (pids / "pids.max").read_text() == str(5 + groups.OWN_PROCESSES)
    assert not group.killed_for_memory()
    group.events.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert group.killed_for_memory()


def test_groups_of_version_2_need_delegated_controllers(fake_groups):
    (fake_groups / "user" / "session").mkdir(parents=True)
    (fake_groups / "own").write_text("0::/user/session\n")
    (fake_groups / "user" / "session" / "cgroup.subtree_control").write_text("")
    (fake_groups / "user" / "cgroup.subtree_control").write_text("cpu\n")
    assert groups.create(LIMITS) is None
    (fake_groups / "user" / "cgroup.subtree_control").write_text("memory pids\n")
    (fake_groups / "user" / "cgroup.procs").write_text("")
    group = groups.create(LIMITS)
    assert group is not None and group.folders[0].parent == fake_groups / "user"
    assert (group.folders[0] / "pids.max").read_text() == str(5 + groups.OWN_PROCESSES)


def test_no_groups(fake_groups):
    (fake_groups / "own").write_text("4:memory:/gone\n8:pids:/gone\n")
    assert groups.create(LIMITS) is None
    (fake_groups / "own").unlink()
    assert groups.create(LIMITS) is None
    assert not list(Path(fake_groups).iterdir())


KEPT_OUT = {
    "ptrace": 101, "process_vm_readv": 310, "mount": 165, "pivot_root": 155, "unshare": 272, "setns": 308, "bpf": 321,
    "keyctl": 250, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "open_by_handle_at": 304,
    "memfd_create": 319, "init_module": 175, "kexec_load": 246, "reboot": 169, "inotify_init": 253,
    "inotify_init1": 294, "inotify_add_watch": 254, "flock": 73, "vmsplice": 278, "ioprio_set": 251,
}  # fmt: skip
"""Some calls with their numbers on x86_64, from the kernel's table."""


def test_the_list_has_the_calls_that_reach_out():
    """Against the kernel's table: the test of the filter holds it against the same list that it is made from."""
    assert {name: seccomp.REFUSED[name][0] for name in KEPT_OUT} == KEPT_OUT
    assert {name: pair[0] for name, (pair, _) in seccomp.OF_ITSELF.items()} == {
        "prlimit64": 302, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setaffinity": 203,
        "sched_setattr": 314, "setpriority": 141,
    }  # fmt: skip
    assert {name: pair[0] for name, pair in seccomp.SOCKETS.items()} == {"socket": 41, "socketpair": 53}
    assert (seccomp.MMAP[0], seccomp.FCNTL[0], seccomp.SETSOCKOPT[0]) == (9, 72, 54)


def test_memory_of_processes_counts_shared_pages_once_and_survives_hidden_maps(monkeypatch):
    """KiB of all descendants. Two processes share 6,000 KiB, so that each is charged with 3,000 of them."""
    rollup = (
        "00400000-7fff [rollup]\nRss: 9000 kB\nPss: 4100 kB\nPss_Anon: 1000 kB\nPss_File: 100 kB\nPss_Shmem: 3000 kB\n"
    )
    files = {"1/children": "2 3", "2/children": "", "3/children": ""}
    files |= {"2/smaps_rollup": rollup, "3/smaps_rollup": rollup}
    monkeypatch.setattr(launch.os, "open", lambda path, flags, dir_fd: path)
    monkeypatch.setattr(launch.os, "close", lambda descriptor: None)
    monkeypatch.setattr(launch.os, "listdir", lambda threads: [threads.partition("/")[0]])

    def read_text(path: str, directory: object) -> str:
        if path not in files:
            raise PermissionError(path)
        return files[path]

    monkeypatch.setattr(launch, "_read_text", read_text)
    assert launch._memory_kib(1, -1) == 2 * (1000 + 3000)
    del files["3/smaps_rollup"]  # hidden: all its resident pages count
    files["3/statm"] = "9999 500 100 1 0 300 0"
    assert launch._memory_kib(1, -1) == 1000 + 3000 + 500 * os.sysconf("SC_PAGE_SIZE") // 1024
