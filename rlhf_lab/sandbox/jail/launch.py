"""The launcher: builds a sandbox around one program, waits for it, ends whatever it started, and reports.

Three processes. The launcher itself is started by the lab with an empty environment and lives in the lab's own
namespaces. Its child, the keeper, is process 1 of the new namespaces: it makes the root, starts the program, and ends
last. The program is the keeper's child, with a uid, limits and a filter of its own.

    lab ── control pipe ──> launcher ── fork ──> keeper ── fork, exec ──> program
     └────── status pipe <────────────────────────┘

The control pipe carries the specification and stays open: when the lab closes it, or dies, the launcher ends the
keeper, and the kernel everything in its namespace. Only the keeper writes to the status pipe, which the program does
not have. With `namespaces` false (the level `rlimits`) the keeper is an ordinary process, and finds what the program
started by walking /proc.
"""

import marshal
import os
import resource
import select
import signal
import stat
import time

from rlhf_lab.sandbox.jail import mounts, seccomp, syscalls

MIB = 1024 * 1024
OPEN_FILES = 64
WATCH_MS = 50
"""How often the memory of a program's processes is added up. Most programs have ended before the first time."""
GRACE_S = 5.0
"""The keeper ends by itself so long after the wall limit, should the lab not have ended it by then."""
FAILED_TO_START = 125
READ_AT_ONCE = 1 << 20


def run(control: int, status: int) -> None:
    """Run the program that the control pipe describes. Never returns.

    The specification, a dictionary: argv, env, folder (working folder; of `rlimits` a temporary one of the lab),
    files (name → bytes), namespaces, user_namespace, seccomp (booleans), uids (first, count), read_only, hidden,
    links (see `mounts.py`), memory_mib, disk_mib, cpu_s, wall_s, processes, keep (whether files come back), groups
    (files of control groups to join).
    """
    spec = marshal.loads(_read_frame(control))
    first_uid, count = spec["uids"]
    spec["uid"] = first_uid + os.getpid() % count  # no two launchers that run have one number
    try:
        for group in spec["groups"]:
            with open(group, "w") as file:
                file.write("0")  # the process that writes
        if spec["namespaces"]:
            _enter_namespaces(spec)
        else:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        # The keeper's new root becomes this process's too, and nothing but this descriptor leads to /proc then.
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        keeper = os.fork()
        if keeper == 0:
            os.close(control)
            os.close(proc)
            _keep(spec, status)
    except OSError as error:
        _report(status, {"failed": str(error)}, {})
        os._exit(FAILED_TO_START)
    for descriptor in (0, 1, 2):
        os.close(descriptor)  # else the lab would wait for this process to see their end
    uses_too_much = _watch(spec, control, keeper, proc)
    os.waitpid(keeper, 0)
    if not spec["namespaces"]:
        _end_descendants(os.getpid())  # what a keeper that was killed has left is now the launcher's
    if uses_too_much:
        _report(status, {"code": -signal.SIGKILL, "memory": True}, {})
    os._exit(0)


def _watch(spec: dict, control: int, keeper: int, proc: int) -> bool:
    """Wait for the keeper, and end it when the lab closes the control pipe or the program's processes use too much
    memory together; whether they did. A control group counts exactly; without one they are asked every WATCH_MS."""
    keeper_ended = os.pidfd_open(keeper)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(keeper_ended, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll(None if spec["groups"] else WATCH_MS)]
        if keeper_ended in ready:
            return False
        uses_too_much = not ready and _anonymous_memory(keeper, proc) > spec["memory_mib"] * MIB
        if ready or uses_too_much:
            os.kill(keeper, signal.SIGKILL)
            return uses_too_much


def _anonymous_memory(ancestor: int, proc: int) -> int:
    """Bytes of memory that are no files, of all descendants of a process."""
    pages = 0
    processes = [ancestor]
    for process in processes:
        try:
            threads = os.open(f"{process}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
            try:
                for thread in os.listdir(threads):
                    children = _read_text(f"{thread}/children", threads)
                    processes += [int(child) for child in children.split()]
            finally:
                os.close(threads)
            _, resident, shared = _read_text(f"{process}/statm", proc).split()[:3]
        except OSError:  # it has ended meanwhile
            continue
        if process != ancestor:
            pages += int(resident) - int(shared)
    return pages * resource.getpagesize()


def _read_text(path: str, folder: int) -> str:
    descriptor = os.open(path, os.O_RDONLY, dir_fd=folder)
    try:
        return os.read(descriptor, READ_AT_ONCE).decode()
    finally:
        os.close(descriptor)


def _read_frame(descriptor: int) -> bytes:
    """A length of eight bytes, and so many bytes."""
    length = int.from_bytes(_read(descriptor, 8), "little")
    return _read(descriptor, length)


def _read(descriptor: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.read(descriptor, min(length, READ_AT_ONCE))
        if not part:
            os._exit(FAILED_TO_START)  # the lab is gone
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _enter_namespaces(spec: dict) -> None:
    """New namespaces for the next child. An ordinary user needs a user namespace around them; root does without,
    because the kernel does not count processes of root, under whatever number, against RLIMIT_NPROC."""
    if spec["user_namespace"]:
        outside = (os.geteuid(), os.getegid())
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.EVERY_NAMESPACE)
        for name, number in zip(("uid_map", "gid_map"), outside, strict=True):
            if name == "gid_map":  # without this an ordinary user may not write the map
                _write("/proc/self/setgroups", "deny")
            _write(f"/proc/self/{name}", f"{spec['uid']} {number} 1")
    else:
        syscalls.unshare(syscalls.EVERY_NAMESPACE)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _keep(spec: dict, status: int) -> None:
    """The keeper: make the root, start the program, wait, end what is left of it, report. Never returns."""
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)  # an ordinary user's program has the keeper's uid
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        if spec["namespaces"]:
            syscalls.set_hostname("sandbox")
            mounts.enter_root(spec)
        else:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        os.chdir(spec["folder"])
        _write_files(spec)
        program = _start(spec)
    except OSError as error:
        _report(status, {"failed": str(error)}, {})
        os._exit(FAILED_TO_START)
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    code = _wait(program, time.monotonic() + spec["wall_s"] + GRACE_S)
    _end_all(spec["namespaces"])
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    files, is_cut = _read_files(spec["disk_mib"] * MIB) if spec["keep"] else ({}, False)
    result = {
        "code": code,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "files_cut": is_cut,
    }
    _report(status, result, files)
    os._exit(0)


def _write_files(spec: dict) -> None:
    for name, content in spec["files"].items():
        parent = os.path.dirname(name)
        if parent:
            os.makedirs(parent, exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)
    if spec["namespaces"]:
        for folder, _, names in os.walk("."):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                os.chown(path, spec["uid"], spec["uid"])


def _start(spec: dict) -> int:
    """Start the program; its process. Raises OSError when it does not start: the child says why on a pipe that
    closes when the program is executed."""
    receive, send = os.pipe()
    program = os.fork()
    if program == 0:
        os.close(receive)
        try:
            _become_program(spec, send)
        except OSError as error:
            os.write(send, str(error).encode())
        finally:
            os._exit(FAILED_TO_START)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        problem = pipe.read()
    if problem:
        os.waitpid(program, 0)
        raise OSError(problem.decode())
    return program


def _become_program(spec: dict, send: int) -> None:
    """Give up every right, and execute. Raises OSError."""
    os.setsid()  # no terminal whose input could be forged
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.closerange(3, send)
    os.closerange(send + 1, 1 << 16)
    os.umask(0o077)
    if spec["namespaces"]:
        syscalls.drop_bounding_set()
        if not spec["user_namespace"]:
            os.setgroups([])
            os.setresgid(spec["uid"], spec["uid"], spec["uid"])
    for name, limit in _resource_limits(spec).items():
        resource.setrlimit(name, (limit, limit))
    if spec["namespaces"] and not spec["user_namespace"]:
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    if spec["seccomp"]:
        seccomp.install()
    os.execve(spec["argv"][0], spec["argv"], spec["env"])


def _resource_limits(spec: dict) -> dict:
    limits = {
        resource.RLIMIT_AS: spec["memory_mib"] * MIB,
        resource.RLIMIT_CPU: max(1, int(-(-spec["cpu_s"] // 1))),  # whole seconds, rounded up
        resource.RLIMIT_FSIZE: spec["disk_mib"] * MIB,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if spec["namespaces"]:
        # In a user namespace the keeper has the program's uid and counts too. Without namespaces all processes of the
        # user would count, and those of root would not be limited.
        limits[resource.RLIMIT_NPROC] = spec["processes"] + (1 if spec["user_namespace"] else 0)
    return limits


def _wait(program: int, deadline: float) -> int:
    """Wait for the program, and bury its orphans; its exit status, negative for a signal. The deadline kills it."""
    while True:
        process, code = os.waitpid(-1, os.WNOHANG)
        if process == program:
            return os.waitstatus_to_exitcode(code)
        if process == 0:
            left = deadline - time.monotonic()
            if left <= 0:
                os.kill(program, signal.SIGKILL)
                os.waitpid(program, 0)
                return -signal.SIGKILL
            signal.sigtimedwait({signal.SIGCHLD}, min(left, 1.0))


def _end_all(namespaces: bool) -> None:
    """End and bury every process that the program left."""
    if namespaces:
        try:
            os.kill(-1, signal.SIGKILL)  # everything in the namespace but the keeper
        except ProcessLookupError:
            return
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return
    _end_descendants(os.getpid())


def _end_descendants(ancestor: int) -> None:
    """Kill what descends from a process until nothing is left. Orphans are its children: it is their reaper."""
    while True:
        found = _descendants(ancestor)
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        if not found:
            return
        time.sleep(0.001)


def _descendants(ancestor: int) -> list:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()  # the name before may hold anything
            except OSError:  # it has ended meanwhile
                continue
            parents[int(name)] = int(fields[1])
    found = [ancestor]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


def _read_files(most: int) -> tuple:
    """Regular files below the working folder: (name → bytes, whether some were left out because of their size).

    Nothing of the program runs any more. No link is followed: each folder and file is opened relative to the one
    above it with O_NOFOLLOW, and anything that is neither folder nor regular file is passed over.
    """
    files = {}
    is_cut = False
    pending = [("", os.open(".", os.O_RDONLY | os.O_DIRECTORY))]
    while pending:
        prefix, folder = pending.pop()
        for name in sorted(os.listdir(folder)):
            try:
                kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                if stat.S_ISDIR(kind) and prefix.count("/") < 16:
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                    pending.append((f"{prefix}{name}/", os.open(name, flags, dir_fd=folder)))
                elif stat.S_ISREG(kind):
                    content = _read_file(name, folder, most)
                    if len(content) > most:
                        is_cut = True
                    else:
                        most -= len(content)
                        files[prefix + name] = content
            except OSError:  # a folder without permissions, or too many of them at once
                is_cut = True
        os.close(folder)
    return files, is_cut


def _read_file(name: str, folder: int, most: int) -> bytes:
    """Up to one byte more than `most`."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most + 1)


def _report(status: int, result: dict, files: dict) -> None:
    """A line with the result and the sizes of the files, and their contents."""
    result["files"] = [(name, len(content)) for name, content in files.items()]
    with os.fdopen(status, "wb") as pipe:
        pipe.write(repr(result).encode("utf-8", "backslashreplace") + b"\n")
        for content in files.values():
            pipe.write(content)
