"""The launcher: builds a sandbox around one program, waits for it, ends whatever it started, and reports.

Three processes. The launcher is started by the lab with an empty environment. It makes the namespaces and the root and
moves into them, but for the process namespace, which begins with its child. That child, process 1, starts the program
and reaps orphans. The program has a uid, limits and a filter of its own.

    lab ── control pipe ──> launcher ── fork ──> process 1 ── fork, exec ──> program
     └────── status pipe <─────┴──── result pipe <────┘

No process of the sandbox can name the launcher, so that nothing a program does keeps it from reporting. An ordinary
user's process 1 has the program's uid, and may be ended by it (by a resource limit, where no filter of system calls
refuses that): the kernel then ends the program too, and the launcher reports both as killed.

The control pipe carries the specification and stays open: when the lab closes it, or dies, the launcher ends process 1,
and the kernel everything in its namespace. Only the launcher writes to the status pipe. With `namespaces` false (the
level `rlimits`) process 1 is an ordinary process, and what the program started is found by walking /proc.
"""

import errno
import marshal
import os
import resource
import select
import signal
import stat
import time

from rlhf_lab.packs.code.sandbox.jail import mounts, seccomp, syscalls

KIB = 1024
MIB = 1024 * 1024
OPEN_FILES = 64
WATCH_MS = 50
"""How often the memory of a program's processes is added up. Most programs have ended before the first time."""
GRACE_S = 5.0
"""Process 1 ends by itself so long after the wall limit, should the lab not have ended it by then."""
FAILED_TO_START = 125
READ_AT_ONCE = 1 << 20
STARTED = b"started\n"
"""First line of a report. A launcher that ends without it has never started its program."""


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
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)  # the new root has no /proc
        if spec["namespaces"]:
            syscalls.set_hostname("sandbox")
            mounts.enter_root(spec)
        # Inherited by process 1: an ordinary user's program, which has the same uid, can neither trace nor read them.
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        os.chdir(spec["folder"])
        if not _write_files(spec):
            _report(status, {"disk_full": True}, {})
            os._exit(0)
        process_1, receive = _start_process_1(spec, (control, status, proc))
    except OSError as error:
        _report(status, {"failed": str(error)}, {})
        os._exit(FAILED_TO_START)
    os.write(status, STARTED)
    for descriptor in (0, 1, 2):
        os.close(descriptor)  # else the lab would wait for this process to see their end
    ended_for = _watch(spec, control, process_1, proc)
    os.waitpid(process_1, 0)
    if not spec["namespaces"]:
        _end_descendants(os.getpid())  # what a process 1 that was killed has left is now the launcher's
    if ended_for == "memory":
        _report(status, {"code": -signal.SIGKILL, "memory": True}, {})
    elif not ended_for:
        _report_result(spec, status, receive)
    os._exit(0)


def _report_result(spec: dict, status: int, receive: int) -> None:
    """Report what process 1 wrote to the result pipe, with the files of the working folder. Nothing runs any more."""
    written = os.read(receive, READ_AT_ONCE)
    # without a result process 1 was killed, and with it everything in its namespace
    result = marshal.loads(written) if written else {"code": -signal.SIGKILL}
    files = {}
    if spec["keep"] and "failed" not in result:
        files, result["files_cut"] = _read_files(spec["disk_mib"] * MIB)
    _report(status, result, files)


def _watch(spec: dict, control: int, process_1: int, proc: int) -> str:
    """Wait for the end of process 1, and kill it when the lab closes the control pipe or the program's processes use
    too much memory together.

    Returns:
        "" if it ended by itself, else why it was killed: "lab" or "memory". A control group counts memory exactly;
        without one it is added up every WATCH_MS.
    """
    has_ended = os.pidfd_open(process_1)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(has_ended, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll(None if spec["groups"] else WATCH_MS)]
        if has_ended in ready:
            return ""
        if ready:
            ended_for = "lab"
        elif _memory_kib(process_1, proc) * KIB > spec["memory_mib"] * MIB:
            ended_for = "memory"
        else:
            continue
        os.kill(process_1, signal.SIGKILL)
        return ended_for


def _memory_kib(ancestor: int, proc: int) -> int:
    """KiB of memory, other than files on disk, of all descendants of a process."""
    total = 0
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
            if process != ancestor:
                total += _memory_of_process(process, proc)
        except OSError:  # it has ended meanwhile
            continue
    return total


def _memory_of_process(process: int, proc: int) -> int:
    """KiB of anonymous and shared memory; a page that several processes share counts a part in each."""
    try:
        lines = _read_text(f"{process}/smaps_rollup", proc).splitlines()
    except PermissionError:
        # A process of `rlimits` can hide its maps, but not its number of resident pages.
        _, resident = _read_text(f"{process}/statm", proc).split()[:2]
        return int(resident) * resource.getpagesize() // KIB
    counts = [line.split()[1] for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    return sum(int(count) for count in counts)


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


def _write_files(spec: dict) -> bool:
    """Write the program's files; False where they do not fit on its disk, as those that an earlier run left may."""
    try:
        for name, content in spec["files"].items():
            parent = os.path.dirname(name)
            if parent:
                os.makedirs(parent, exist_ok=True)
            with open(name, "wb") as file:
                file.write(content)
    except OSError as error:
        if error.errno == errno.ENOSPC and spec["namespaces"]:  # of `rlimits` the disk is the machine's
            return False
        raise
    if spec["namespaces"]:
        for folder, _, names in os.walk("."):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                os.chown(path, spec["uid"], spec["uid"])
    return True


def _start_process_1(spec: dict, of_launcher: tuple) -> tuple:
    """Fork process 1: (process, descriptor of the result pipe). It closes the descriptors `of_launcher`."""
    receive, send = os.pipe()
    process_1 = os.fork()
    if process_1 == 0:
        try:
            for descriptor in (receive, *of_launcher):
                os.close(descriptor)
            result = _run_program(spec)
            os.write(send, marshal.dumps(result))
        finally:
            os._exit(0)
    os.close(send)
    return process_1, receive


def _run_program(spec: dict) -> dict:
    """What process 1 does: start the program, wait, end what is left of it. Returns code and cpu_s, or failed."""
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        if not spec["namespaces"]:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        program = _start(spec)
    except OSError as error:
        return {"failed": str(error)}
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    code = _wait(program, time.monotonic() + spec["wall_s"] + GRACE_S)
    _end_all(spec["namespaces"])
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"code": code, "cpu_s": usage.ru_utime + usage.ru_stime}


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
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of uid, which would undo it
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
        # In a user namespace process 1 has the program's uid and counts too. Without namespaces all processes of the
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
            os.kill(-1, signal.SIGKILL)  # everything in the namespace but this process
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
    try:
        pending = [("", os.open(".", os.O_RDONLY | os.O_DIRECTORY))]
    except OSError:  # at the level `rlimits` a program can remove its folder, or close it to this user
        return {}, True
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
