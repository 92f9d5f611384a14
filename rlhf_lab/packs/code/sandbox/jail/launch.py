"""Launcher: builds a sandbox around one program, waits for it, kills its remaining processes, and reports.

There are three processes. The parent process of rlhf_lab starts the launcher with an empty environment. The launcher
creates the namespaces and the root and enters them, except for the process namespace, which starts with its child. That
child, process 1, starts the program and reaps orphans. The program has its own uid, limits and filter.

    parent ── control pipe ──> launcher ── fork ──> process 1 ── fork, exec ──> program
      └─────── status pipe <──────┴──── result pipe <────┘

No process of the sandbox has a process id for the launcher, so a program cannot prevent it from reporting. For an
ordinary user, process 1 has the uid of the program. The program may be able to kill it with a resource limit, unless
the filter of system calls forbids that. The kernel then kills the program too, and the launcher reports both as killed.

The control pipe carries the specification and stays open. When the parent closes it or dies, the launcher kills process
1, and the kernel kills all processes in its namespace. The launcher writes STARTED to the status pipe right before the
program is executed, and one line of JSON at the end. With `namespaces` false (level `rlimits`), process 1 is an
ordinary process and descendants of the program are found in /proc. At that level a program of root can write to the
status pipe, so the parent validates its content.
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
OPEN_FILES = 64  # maximum number of open files of a program (RLIMIT_NOFILE)
WATCH_MS = 50
"""Interval in ms between checks of the total memory of a program. Most programs finish before the first check."""
GRACE_S = 5.0
"""Time after the wall limit in seconds at which process 1 kills the program itself, if the parent has not done so."""
FAILED_TO_START = 125
"""Exit status of a process that could not start the program."""
READ_AT_ONCE = 1 << 20  # maximum number of bytes per read of a pipe
STARTED = b"started\n"
"""Marker on the status pipe right before the program is executed. A report before the marker cannot come from the
program. A launcher that exits without writing it has never started the program."""
PENDING_SIGNALS = 256
"""Maximum number of queued signals and POSIX timers of a program. Each of them uses kernel memory."""
MAX_FOLDER_DEPTH = 16  # of returned files: a program can nest directories without end
MAX_PATH_BYTES = 2048
"""Maximum length of a returned path, half of the kernel's PATH_MAX, because the next run may write it below another
directory."""
MAX_LIST_CHARS = 1 << 19
"""Maximum length of the list of files in a report, so that the report stays below `levels.STATUS_BYTES`."""
BAD_TREE = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""Error numbers of files that contradict each other, such as `a` and `a/b`, or have names that are too long."""


def run(control: int, status: int) -> None:
    """Run the program that the control pipe describes. Never returns.

    The specification is a dictionary: argv, env, folder (working directory; a temporary one at level `rlimits`), files
    (name → bytes), namespaces, user_namespace, seccomp (booleans), uids (first, count), read_only, hidden, links (see
    `mounts.py`), memory_mib, disk_mib, cpu_s, wall_s, processes, keep (True to return files), groups (files of the
    control groups to join).
    """
    spec = marshal.loads(_read_frame(control))
    first_uid, count = spec["uids"]
    spec["uid"] = first_uid + os.getpid() % count  # unique, because running launchers have different process ids
    try:
        for group in spec["groups"]:
            with open(group, "w") as file:
                file.write("0")  # 0 means the writing process
        if spec["namespaces"]:
            _enter_namespaces(spec)
        else:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)  # the new root has no /proc
        if spec["namespaces"]:
            syscalls.set_hostname("sandbox")
            mounts.enter_root(spec)
        # Process 1 inherits this. A program of an ordinary user has the same uid, but can neither trace nor read them.
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        os.chdir(spec["folder"])
        problem = _write_files(spec)
        if problem:
            _report(status, problem)
            os._exit(0)
        os.set_inheritable(status, False)  # closed when the program is executed, so that it cannot write to it
        process_1, receive = _start_process_1(spec, status, (control, proc))
    except OSError as error:
        _report(status, {"failed": str(error)})
        os._exit(FAILED_TO_START)
    for descriptor in (0, 1, 2):
        os.close(descriptor)  # otherwise the parent would not see the end of the program's output
    finished_for = _watch(spec, control, process_1, proc)
    os.waitpid(process_1, 0)
    if not spec["namespaces"]:
        _end_descendants(os.getpid())  # the launcher has adopted the children of a killed process 1
    if finished_for == "memory":
        _report(status, {"code": -signal.SIGKILL, "memory": True})
    elif not finished_for:
        _report_result(spec, status, receive)
    os._exit(0)


def _report_result(spec: dict, status: int, receive: int) -> None:
    """Report the result of process 1 and the files of the working directory. All processes have exited by now."""
    written = os.read(receive, READ_AT_ONCE)
    # without a result, process 1 was killed together with all processes in its namespace
    result = marshal.loads(written) if written else {"code": -signal.SIGKILL}
    files = None
    if spec["keep"] and "failed" not in result:
        files, result["files_cut"] = _read_files(spec["disk_mib"] * MIB, spec["argv"][-1])
    _report(status, result, files)


def _watch(spec: dict, control: int, process_1: int, proc: int) -> str:
    """Wait for process 1. Kill it if the parent closes the control pipe or if the program uses too much memory.

    A control group counts the total memory exactly. Without one, the memory is checked every WATCH_MS.

    Returns:
        Reason of the kill: "lab" (the control pipe was closed) or "memory"; empty if process 1 exited by itself.
    """
    # a pidfd becomes readable when the process exits, so poll can wait for it and the pipe together
    has_finished = os.pidfd_open(process_1)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(has_finished, select.POLLIN)
    while True:
        # with a control group there is no need to wake up for the memory check
        ready = [descriptor for descriptor, _ in poll.poll(None if spec["groups"] else WATCH_MS)]
        if has_finished in ready:
            return ""
        if ready:
            finished_for = "lab"
        elif _memory_kib(process_1, proc) * KIB > spec["memory_mib"] * MIB:
            finished_for = "memory"
        else:
            continue
        os.kill(process_1, signal.SIGKILL)
        return finished_for


def _memory_kib(ancestor: int, proc: int) -> int:
    """Return the memory of all descendants of a process in KiB, without files on disk."""
    total = 0
    processes = [ancestor]
    for process in processes:  # the list grows while children are found: breadth-first search
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
        except OSError:  # the process has exited meanwhile
            continue
    return total


def _memory_of_process(process: int, proc: int) -> int:
    """Return the anonymous and shared memory of a process in KiB. A shared page counts proportionally (PSS)."""
    try:
        lines = _read_text(f"{process}/smaps_rollup", proc).splitlines()
    except PermissionError:
        # at level `rlimits` a process can hide its maps, but not its number of resident pages
        _, resident = _read_text(f"{process}/statm", proc).split()[:2]
        return int(resident) * resource.getpagesize() // KIB
    # file-backed pages do not count, because they are shared with the machine
    counts = [line.split()[1] for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    return sum(int(count) for count in counts)


def _read_text(path: str, directory: int) -> str:
    descriptor = os.open(path, os.O_RDONLY, dir_fd=directory)
    try:
        return os.read(descriptor, READ_AT_ONCE).decode()
    finally:
        os.close(descriptor)


def _read_frame(descriptor: int) -> bytes:
    """Read a frame: its length in eight bytes, little-endian, then its content."""
    length = int.from_bytes(_read(descriptor, 8), "little")
    return _read(descriptor, length)


def _read(descriptor: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.read(descriptor, min(length, READ_AT_ONCE))
        if not part:
            os._exit(FAILED_TO_START)  # the parent has exited
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _enter_namespaces(spec: dict) -> None:
    """Create namespaces for this process and its next child.

    An ordinary user needs a user namespace around them. Root does not use one, because the kernel does not enforce
    RLIMIT_NPROC for processes of root, even if they have another uid in a user namespace.
    """
    if spec["user_namespace"]:
        outside = (os.geteuid(), os.getegid())
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.EVERY_NAMESPACE)
        for name, number in zip(("uid_map", "gid_map"), outside, strict=True):
            if name == "gid_map":  # the kernel requires this before an ordinary user may write the map
                _write("/proc/self/setgroups", "deny")
            _write(f"/proc/self/{name}", f"{spec['uid']} {number} 1")
    else:
        syscalls.unshare(syscalls.EVERY_NAMESPACE)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _write_files(spec: dict) -> dict:
    """Write the program's files. Their paths may be unusual, because an earlier run of the program may have chosen
    them.

    Returns:
        A report if the files do not fit on the disk, or if their paths contradict each other; else an empty dictionary.
    """
    generated = []
    try:
        for name, content in spec["files"].items():
            generated += _make_folders(name)
            with open(name, "wb") as file:
                file.write(content)
            generated.append(name)
    except OSError as error:
        if error.errno == errno.ENOSPC and spec["namespaces"]:  # at level `rlimits` the disk of the machine is full
            return {"disk_full": True}
        if error.errno in BAD_TREE:
            return {"bad_tree": str(error)}
        raise
    if spec["namespaces"]:
        for path in generated:
            os.chown(path, spec["uid"], spec["uid"])
    return {}


def _make_folders(name: str) -> list:
    """Create the missing parent directories of a file and return them.

    `os.makedirs` is recursive, and a path may have thousands of directories.
    """
    generated = []
    for position, char in enumerate(name):
        if char == "/":
            try:
                os.mkdir(name[:position])
                generated.append(name[:position])
            except FileExistsError:  # if it is a file instead of a directory, the next step raises an error
                continue
    return generated


def _start_process_1(spec: dict, status: int, of_launcher: tuple) -> tuple:
    """Fork process 1. Returns its process id and the descriptor of the result pipe.

    Process 1 closes the descriptors `of_launcher`.
    """
    receive, send = os.pipe()
    process_1 = os.fork()
    if process_1 == 0:
        try:
            for descriptor in (receive, *of_launcher):
                os.close(descriptor)
            result = _run_program(spec, status)
            os.write(send, marshal.dumps(result))
        finally:
            os._exit(0)
    os.close(send)
    return process_1, receive


def _run_program(spec: dict, status: int) -> dict:
    """Main function of process 1: start the program, wait, kill the rest. Returns code and cpu_s, or failed."""
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # `_wait` receives it with sigtimedwait
        if not spec["namespaces"]:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        program = _start(spec, status)
    except OSError as error:
        return {"failed": str(error)}
    for descriptor in (0, 1, 2, status):
        os.close(descriptor)
    code = _wait(program, time.monotonic() + spec["wall_s"] + GRACE_S)
    _end_all(spec["namespaces"])
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"code": code, "cpu_s": usage.ru_utime + usage.ru_stime}


def _start(spec: dict, status: int) -> int:
    """Start the program and return its process id. Raises OSError if it does not start.

    The child reports an error on a pipe that is closed when the program is executed.
    """
    receive, send = os.pipe()
    program = os.fork()
    if program == 0:
        os.close(receive)
        try:
            _become_program(spec, status, send)
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


def _become_program(spec: dict, status: int, send: int) -> None:
    """Give up all privileges and execute the program. Raises OSError."""
    # The order matters: the change of uid follows the steps that need privileges, and the filter needs no_new_privs.
    os.setsid()  # no controlling terminal, whose input the program could forge
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # close all descriptors except these two, which the kernel closes when the program is executed
    first, last = sorted((status, send))
    os.closerange(3, first)
    os.closerange(first + 1, last)
    os.closerange(last + 1, 1 << 16)
    os.umask(0o077)
    if spec["namespaces"]:
        syscalls.drop_bounding_set()
        if not spec["user_namespace"]:
            # groups first: a process that is no longer root may not change them
            os.setgroups([])
            os.setresgid(spec["uid"], spec["uid"], spec["uid"])
    for name, (soft, hard) in _resource_limits(spec).items():
        _, largest = resource.getrlimit(name)
        if largest != resource.RLIM_INFINITY:  # only root may raise a hard limit that is lower already
            soft, hard = min(soft, largest), min(hard, largest)
        resource.setrlimit(name, (soft, hard))
    if spec["namespaces"] and not spec["user_namespace"]:
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of uid, which resets it
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    if spec["seccomp"]:
        seccomp.install()
    os.stat(spec["argv"][0])  # a missing interpreter must be reported before STARTED
    os.write(status, STARTED)
    os.execve(spec["argv"][0], spec["argv"], spec["env"])


def _resource_limits(spec: dict) -> dict:
    """Return the soft and hard value of each resource limit."""
    limits = {
        resource.RLIMIT_AS: spec["memory_mib"] * MIB,
        resource.RLIMIT_FSIZE: spec["disk_mib"] * MIB,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: PENDING_SIGNALS,
    }
    if spec["namespaces"]:
        # In a user namespace, process 1 has the uid of the program and counts as well. Without namespaces this limit
        # is not set: it would count all processes of the user, and would not limit those of root.
        limits[resource.RLIMIT_NPROC] = spec["processes"] + (1 if spec["user_namespace"] else 0)
    pairs = {name: (limit, limit) for name, limit in limits.items()}
    # At the soft limit the kernel sends SIGXCPU, which identifies the limit; at the hard limit it sends SIGKILL.
    pairs[resource.RLIMIT_CPU] = (spec["cpu_s"], spec["cpu_s"] + 1)
    return pairs


def _wait(program: int, deadline: float) -> int:
    """Wait for the program, and reap orphans. Kill the program at the deadline.

    Returns its exit status, negative for a signal.
    """
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
    """Kill and reap all remaining processes of the program."""
    if namespaces:
        try:
            os.kill(-1, signal.SIGKILL)  # all processes in the namespace except this one
        except ProcessLookupError:
            return
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return
    _end_descendants(os.getpid())


def _end_descendants(ancestor: int) -> None:
    """Kill all descendants of a process. Orphans are its children, because it is their reaper."""
    while True:  # repeated, because a process may fork between the search and the kill
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
                    fields = file.read().rpartition(b")")[2].split()  # the name before it may contain any character
            except OSError:  # the process has exited meanwhile
                continue
            parents[int(name)] = int(fields[1])
    found = [ancestor]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


def _read_files(limit: int, main: str) -> tuple:
    """Read the regular files in the working directory, except the program itself, `main`, or its replacement.

    All processes of the program have exited. No link is followed: each directory and file is opened relative to its
    parent directory with O_NOFOLLOW. Other kinds of files are skipped.

    Returns:
        The contents by name, and True if files were omitted (because of size or path, or because they are unreadable).
        The contents are None if the directory itself is unreadable. At level `rlimits`, a program can remove it or
        change its permissions.
    """
    files: dict = {}
    left = {"bytes": limit, "list_chars": MAX_LIST_CHARS}
    try:
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        names = os.listdir(directory)
    except OSError:
        return None, True
    is_complete = _read_folder(directory, "", [name for name in names if name != main], left, files)
    return files, not is_complete


def _read_folder(directory: int, prefix: str, names: list, left: dict, files: dict) -> bool:
    """Add the files of an open directory to `files` and close it. Returns True if all files were read."""
    is_complete = True
    for name in sorted(names):
        path = prefix + name
        try:
            kind = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind):
                is_complete &= _read_folder_below(directory, name, path, left, files)
            elif stat.S_ISREG(kind):
                is_complete &= _add_file(directory, name, path, left, files)
        except OSError:  # for example a directory without permissions
            is_complete = False
    os.close(directory)
    return is_complete


def _read_folder_below(directory: int, name: str, path: str, left: dict, files: dict) -> bool:
    if path.count("/") == MAX_FOLDER_DEPTH:
        return False
    below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    try:
        names = os.listdir(below)
    except OSError:
        os.close(below)  # `_read_folder` closes it otherwise
        raise
    return _read_folder(below, f"{path}/", names, left, files)


def _add_file(directory: int, name: str, path: str, left: dict, files: dict) -> bool:
    """Add a file to `files` if its path is UTF-8, and path and content are within the limits. Returns True if added."""
    try:
        path.encode()
    except UnicodeEncodeError:  # a name that is not UTF-8 cannot be stored or displayed as text
        return False
    chars = len(_json([path, left["bytes"]]))
    if len(os.fsencode(path)) > MAX_PATH_BYTES or chars > left["list_chars"]:
        return False
    content = _read_file(name, directory, left["bytes"])
    if len(content) > left["bytes"]:
        return False
    left["bytes"] -= len(content)
    left["list_chars"] -= chars
    files[path] = content
    return True


def _read_file(name: str, directory: int, limit: int) -> bytes:
    """Read up to `limit` + 1 bytes of a file; the additional byte reveals that it is too large."""
    # O_NONBLOCK: opening a pipe without a writer would block
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit + 1)


def _report(status: int, result: dict, files: dict | None = None) -> None:
    """Write a line with the result and the sizes of files, then their contents. `files` is None if none were read."""
    if files is not None:
        result["files"] = [[name, len(content)] for name, content in files.items()]
    with os.fdopen(status, "wb") as pipe:
        pipe.write(_json(result).encode("ascii") + b"\n")
        for content in (files or {}).values():
            pipe.write(content)


def _json(value: object) -> str:
    """Serialise the values of a report to JSON. The json library is not used, because its import is slow."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_json, value))}]"
    if isinstance(value, dict):
        items = [f"{_json(key)}:{_json(item)}" for key, item in value.items()]
        return "{" + ",".join(items) + "}"
    return '"' + "".join(map(_escaped, str(value))) + '"'


def _escaped(char: str) -> str:
    """Return the JSON escape of a character. No codec is used, because the new root may lack the library."""
    number = ord(char)
    if number < 0x10000:
        return f"\\u{number:04x}"
    # characters beyond the basic plane are a pair of UTF-16 surrogates
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
