"""Programs end with the status that says what happened, and leave nothing behind."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from subprocess import PIPE

import pytest
from attacks import ENDS_PROCESS_1, ENDS_THE_LAUNCHER, HOLDS_SHARED_MEMORY, MAKES_TIMERS, WRITES_A_REPORT

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.code.sandbox import container, levels, process
from rlhf_lab.packs.code.sandbox import sandbox as module
from rlhf_lab.packs.code.sandbox.jail import launch
from rlhf_lab.packs.code.sandbox.jail.launch import STARTED
from rlhf_lab.packs.code.sandbox.outcome import SandboxError, SandboxUnavailable
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox, why_not
from rlhf_lab.packs.code.sandbox.settings import Sandboxing


def test_a_program_reads_and_writes(best):
    outcome = best.run("import sys; print(input() * 2); print('bad', file=sys.stderr)", stdin="ab\n")
    assert (outcome.status, outcome.exit, outcome.stdout, outcome.stderr) == ("ok", 0, "abab\n", "bad\n")
    assert outcome.level == best.level == "namespaces+seccomp"
    assert 0 < outcome.cpu_s < 5 and outcome.wall_s > 0


@pytest.mark.parametrize(
    ("code", "status", "exit"),
    [
        ("raise SystemExit(3)", "error", 3),
        ("1 / 0", "error", 1),
        ("import os; os.kill(os.getpid(), 9)", "killed", -9),
        ("x = bytearray(10**9)", "memory", 1),
        ("open('x', 'w').write('x' * 10**7)", "disk", 1),
        ("import os\nwhile True: os.fork()", "processes", 1),
        ("print('x' * 10**6)", "output", None),
    ],
)
def test_statuses(best, code, status, exit):
    outcome = best.run(code)
    assert (outcome.status, outcome.exit) == (status, exit), outcome


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "while True: pass"])
def test_time_is_bounded(best, code):
    quick = Sandbox(Sandboxing(level=best.level, timeout_s=0.5))
    before = time.monotonic()
    assert quick.run(code).status == "timeout"
    assert time.monotonic() - before < 5


def test_memory_of_all_processes_is_bounded(best, monkeypatch):
    """Without a control group the launcher adds up what they use."""
    monkeypatch.setattr(module.groups, "create", lambda limits: None)
    code = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        x = bytearray(b'x') * (64 << 20)
        time.sleep(3)
        os._exit(0)
for _ in range(4):
    os.wait()
"""
    assert best.run(code).status == "memory"


def test_nothing_of_the_environment_enters_and_runs_are_equal(best, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    seen = json.loads(best.run("import json, os; print(json.dumps(dict(os.environ)))").stdout)
    assert seen == {**levels.ENVIRONMENT, **({"LC_CTYPE": seen["LC_CTYPE"]} if "LC_CTYPE" in seen else {})}
    outcomes = best.run_many([f"print({number}, hash('a'))" for number in range(6)], at_once=3)
    numbers, hashes = zip(*(outcome.stdout.split() for outcome in outcomes), strict=True)
    assert numbers == tuple("012345") and len(set(hashes)) == 1


def test_files_go_in_and_come_back(best):
    first = best.run("open('notes/b.txt', 'a').write('2')", files={"notes/b.txt": b"1", "data": b"\0"}, keep=True)
    assert first.files == {"notes/b.txt": b"12", "data": b"\0"}
    second = best.run("print(open('notes/b.txt').read())", files=first.files, keep=True)
    assert second.stdout == "12\n"
    assert best.run("pass").files is None


def test_only_regular_files_come_back(best, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    code = f"""
import os
os.symlink({str(secret)!r}, 'link')
os.symlink({str(tmp_path)!r}, 'folder')
os.symlink('/', 'root')
os.mkfifo('pipe')
os.mkdir('closed'); open('closed/x', 'w').write('x'); os.chmod('closed', 0)
"""
    kept = best.run(code, keep=True)
    assert kept.status == "ok" and set(kept.files) <= {"closed/x"}


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", ""])
def test_files_stay_in_their_folder(best, name):
    with pytest.raises(ConfigError, match="is outside its directory"):
        best.run("pass", files={name: b""})
    with pytest.raises(ConfigError, match=r"'main.py/x' of a program is below main.py.*rename it"):
        best.run("pass", files={"main.py/x": b""})


def test_no_process_survives(best):
    mark = f"survivor-{os.getpid()}"
    code = f"""
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; time.sleep(60)', {mark!r}])
    os._exit(0)
"""
    before = children()  # of other tests in this process
    assert best.run(code).status == "ok"
    assert children() == before
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    assert not any(mark.encode() in line for line in lines)


def children() -> list[str]:
    """Children of this process."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()


def test_descriptors_are_closed(best):
    best.run("pass")
    before = set(os.listdir("/proc/self/fd"))
    best.run("pass")
    best.run("print('x' * 10**6)")
    assert set(os.listdir("/proc/self/fd")) == before


def test_threads_and_subprocesses_work_inside(best):
    code = """
import subprocess, sys, threading
threads = [threading.Thread(target=print, args=(n,)) for n in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
print(subprocess.run([sys.executable, '-S', '-c', 'print(7)'], capture_output=True, text=True).stdout)
"""
    assert sorted(best.run(code).stdout.split()) == ["0", "1", "2", "7"]


def test_an_ordinary_user_has_the_same(as_ordinary_user):
    code = """
if why_not('namespaces+seccomp'):
    print(json.dumps(why_not('namespaces+seccomp')))
else:
    sandbox = Sandbox(Sandboxing(level='namespaces+seccomp', timeout_s=5, memory_mib=128, processes=8))
    programs = ["print(1)", "x = bytearray(10**9)", "import os\\nwhile True: os.fork()", "open('/etc/shadow')"]
    print(json.dumps([outcome.status for outcome in sandbox.run_many(programs)]))
"""
    statuses = as_ordinary_user(code)
    if isinstance(statuses, str):
        pytest.skip(f"an ordinary user has no user namespace here: {statuses}")
    assert statuses == ["ok", "memory", "processes", "error"]


def test_auto_never_falls_to_rlimits(monkeypatch):
    monkeypatch.setattr(module, "why_not", lambda level, image="": "no")
    with pytest.raises(SandboxUnavailable, match=r"namespaces\+seccomp: no.*container: no.*namespaces: no.*=rlimits"):
        assert Sandbox().level
    monkeypatch.setattr(module, "why_not", lambda level, image="": "" if level == "rlimits" else "no")
    with pytest.raises(SandboxUnavailable):
        assert Sandbox().level
    assert Sandbox(Sandboxing(level="rlimits")).level == "rlimits"


def test_rlimits_bounds_and_cleans_up():
    before = children()
    sandbox = Sandbox(Sandboxing(level="rlimits", timeout_s=1.0, memory_mib=128))
    assert sandbox.run("print(6 * 7)").stdout == "42\n"
    assert sandbox.run("x = bytearray(10**9)").status == "memory"
    assert sandbox.run("import os, time\nif os.fork(): time.sleep(60)\ntime.sleep(60)").status == "timeout"
    kept = sandbox.run("print(__import__('os').getcwd()); open('a', 'w').write('b')", keep=True)
    assert kept.files["a"] == b"b" and not Path(kept.stdout.strip()).exists()
    assert children() == before


def test_a_machine_without_namespaces_says_so(best, monkeypatch):
    monkeypatch.setattr(levels, "layout", lambda: levels.InterpreterPaths("/no/python", (), (), ()))
    with pytest.raises((SandboxError, FileNotFoundError)):
        best.run("pass")
    assert "user namespaces are not allowed" in levels.problem_of("unshare(0x7e020000): Operation not permitted")


FAKE = """#!{python}
import os, sys
words = sys.argv[1:]
open({log!r}, "a").write(repr(words) + "\\n")
if words[0] == "run":
    os.chdir({directory!r})
    start = words.index("python3")
    import subprocess
    if os.path.exists("refuses"):
        sys.exit("docker: no such image") if open("refuses").read() == "1" else os._exit(125)
    program = subprocess.Popen([{python!r}, *words[start + 1:]])
    open("pid", "w").write(str(program.pid))
    code = program.wait()
    sys.exit(128 - code if code < 0 else code)
if words[0] == "kill":
    os.kill(int(open({directory!r} + "/pid").read()), 9)
"""


@pytest.fixture
def fake_docker(tmp_path, monkeypatch):
    """An engine that runs the command without a container."""
    (tmp_path / "bin").mkdir()
    log = tmp_path / "log"
    engine = tmp_path / "bin" / "docker"
    engine.write_text(FAKE.format(python=sys.executable, log=str(log), directory=str(tmp_path)))
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(module, "_tried", {})
    return log


def test_container_runs_the_command_line_of_the_engine(fake_docker):
    sandbox = Sandbox(Sandboxing(level="container", image="python:3.12", timeout_s=5.0, memory_mib=64))
    outcome = sandbox.run("print(input())", stdin="hello\n")
    assert (outcome.status, outcome.stdout, outcome.level) == ("ok", "hello\n", "container")
    words = fake_docker.read_text()
    for option in ("'--network', 'none'", "'--cap-drop', 'ALL'", "'--memory', '64m'", "'python:3.12'", "no-new-priv"):
        assert option in words
    with pytest.raises(SandboxUnavailable, match="container: it returns no files, which this program needs"):
        sandbox.run("pass", keep=True)


def test_auto_takes_a_level_that_returns_files(fake_docker, best, monkeypatch):
    """Without the filter of system calls, a container is first for other programs, but it returns no files."""
    fails = {"namespaces+seccomp"}
    monkeypatch.setattr(module, "why_not", lambda level, image="": "no" if level in fails else why_not(level, image))
    sandbox = Sandbox(Sandboxing(timeout_s=5.0))
    assert sandbox.run("print(1)").level == "container"
    kept = sandbox.run("open('a', 'w').write('b')", keep=True)
    assert (kept.level, kept.files["a"]) == ("namespaces", b"b")
    fails.add("namespaces")
    assert sandbox.run("print(1)").level == "container"
    with pytest.raises(SandboxUnavailable, match="container: it returns no files, which this program needs"):
        sandbox.run("pass", keep=True)


def test_container_is_killed_by_name(fake_docker, monkeypatch):
    monkeypatch.setattr(container, "START_S", 0.0)
    sandbox = Sandbox(Sandboxing(level="container", timeout_s=1.0))
    assert sandbox.level == "container"
    assert sandbox.run("import time; time.sleep(60)").status == "timeout"
    assert "['kill', 'rlhf_lab-sandbox-" in fake_docker.read_text()


@pytest.mark.parametrize(
    ("code", "status", "exit"),
    [
        ("import os; os.kill(os.getpid(), 9)", "memory", -9),  # as the kernel does to a container without memory
        ("import os; os.kill(os.getpid(), 24)", "timeout", -24),  # its processor time is over
        ("import os; os.kill(os.getpid(), 15)", "killed", -15),
        ("raise SystemExit(125)", "error", 125),  # the number with which an engine says that it could not start
        ("import sys; sys.exit('bad')", "error", 1),
    ],
)
def test_the_engines_exit_status_is_not_the_programs(fake_docker, code, status, exit):
    outcome = Sandbox(Sandboxing(level="container", timeout_s=5.0)).run(code)
    assert (outcome.status, outcome.exit) == (status, exit), outcome
    assert container.STARTED not in outcome.stderr


@pytest.mark.parametrize("how", ["1", "125"])
def test_a_container_that_does_not_start_is_an_error(fake_docker, tmp_path, how):
    sandbox = Sandbox(Sandboxing(level="container", timeout_s=5.0))
    assert sandbox.level == "container"
    (tmp_path / "refuses").write_text(how)
    with pytest.raises(SandboxError, match=rf"did not start \(exit status {how}\): (docker: no such image|no message)"):
        sandbox.run("print(1)")


def test_a_launcher_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(process, "PATIENCE_S", 0.2)
    sleeping = subprocess.Popen(["/bin/sleep", "60"], stdin=PIPE, stdout=PIPE, stderr=PIPE)
    program = process.SandboxedProcess(sleeping, lambda: None, stdin=b"", wall_s=0.1, output_bytes=10)
    process.supervise([program])
    assert sleeping.poll() is not None and program.is_hung and program.broke == "timeout"
    came = module._outcome(program, None, "namespaces+seccomp")
    assert (came.status, came.exit) == ("timeout", None) and "did not exit" in came.lost


def test_a_sandbox_that_is_lost_is_the_outcome_of_its_own_program(monkeypatch):
    """At the level `rlimits` a program can end its launcher: the others of its batch are as without it."""
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.0)
    sandbox = Sandbox(Sandboxing(level="rlimits", timeout_s=5.0))
    assert sandbox.level == "rlimits"  # tried here, so that it is not counted below
    tried = count_runs(monkeypatch)
    outcomes = sandbox.run_many(["print(1)", ENDS_THE_LAUNCHER, "print(3)"], at_once=1)
    assert [outcome.status for outcome in outcomes] == ["ok", "killed", "ok"]
    assert outcomes[1].lost == "the launcher exited with status -9 without a report" and not outcomes[0].lost
    assert len(tried) == 1 + 2 + 1  # the one that was lost has run twice


def count_runs(monkeypatch) -> list[object]:
    """Calls of `Sandbox.run_together` from now on."""
    tried: list[object] = []
    run_together = Sandbox.run_together
    monkeypatch.setattr(Sandbox, "run_together", lambda *words: tried.append(words) or run_together(*words))
    return tried


def test_a_sandbox_that_does_not_start_is_started_again(best, monkeypatch):
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.0)
    layout, failures = levels.layout(), [1]

    def fails_once() -> levels.InterpreterPaths:
        if failures:
            failures.pop()
            return levels.InterpreterPaths(layout.python, ("/no such library",), (), ())
        return layout

    monkeypatch.setattr(levels, "layout", fails_once)
    assert best.run("print(1)").stdout == "1\n" and not failures
    monkeypatch.setattr(levels, "layout", lambda: levels.InterpreterPaths(layout.python, ("/no such library",), (), ()))
    with pytest.raises(SandboxError, match="no such library"):
        best.run("print(1)")


def test_the_limits_of_process_1_cannot_be_set(best):
    came = best.run(ENDS_PROCESS_1)
    assert came.status == "error" and "PermissionError" in came.stderr and not came.lost


@pytest.mark.parametrize(("level", "status"), [("namespaces+seccomp", "error"), ("namespaces", "killed")])
def test_an_ordinary_users_program_ends_nothing_but_itself(as_ordinary_user, level, status):
    """Its process 1 has its uid. Without a filter it can end that, and ends with it; what reports lies outside."""
    code = f"""
sandbox = Sandbox(Sandboxing(level={level!r}, timeout_s=20))
outcomes = sandbox.run_many([{ENDS_PROCESS_1!r}, "print(1)"]) if not why_not({level!r}) else []
print(json.dumps([[outcome.status, outcome.stdout, outcome.lost] for outcome in outcomes]))
"""
    outcomes = as_ordinary_user(code)
    if not outcomes:
        pytest.skip(f"an ordinary user has no {level} here")
    assert outcomes == [[status, "", ""], ["ok", "1\n", ""]]


def test_shared_memory_is_bounded_without_a_control_group(best, monkeypatch):
    """4 × 64 MiB of 128 MiB: the filter refuses it, and without a filter the launcher counts what is mapped."""
    monkeypatch.setattr(module.groups, "create", lambda limits: None)
    refused = best.run(HOLDS_SHARED_MEMORY)
    assert "PermissionError: [Errno 1] Operation not permitted" in refused.stderr
    without_filter = Sandbox(Sandboxing(level="namespaces", timeout_s=5.0, memory_mib=128, processes=8))
    assert without_filter.run(HOLDS_SHARED_MEMORY).status == "memory"


def test_pages_that_processes_share_count_once_without_a_control_group(best, monkeypatch):
    """Four children of a process with 60 MiB have 5 × 60 MiB resident, and 60 MiB together."""
    monkeypatch.setattr(module.groups, "create", lambda limits: None)
    code = """
import os, time
data = bytearray(b'x') * (60 << 20)
for _ in range(4):
    if os.fork() == 0:
        time.sleep(.5)
        os._exit(0)
print(sum(os.wait()[1] for _ in range(4)))
"""
    assert best.run(code).stdout == "0\n"


def test_usual_shared_memory_and_locks_work(best):
    """The standard library keeps these files on the program's own disk."""
    code = """
import fcntl, os, sqlite3
from multiprocessing import Value, shared_memory
block = shared_memory.SharedMemory(create=True, size=1000)
block.close(); block.unlink()
with sqlite3.connect('a.db') as database:
    database.execute('pragma journal_mode=WAL')
    database.execute('create table t (x)')
with open('lock', 'w') as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
os.nice(1)
os.sched_setaffinity(0, os.sched_getaffinity(0))
with open('/dev/zero', 'rb') as zeros:
    print(Value('i', 3).value, zeros.read(2))
"""
    came = best.run(code)
    assert came.stdout == "3 b'\\x00\\x00'\n", came.stderr


def test_files_that_no_longer_fit_are_the_programs_own_limit(best):
    """Files that a run leaves go into the next, which has less space when its program is longer."""
    fills = """
try:
    with open('big', 'wb', buffering=0) as file:
        while True: file.write(b'x' * 4096)
except OSError:
    pass
"""
    came = best.run("print(1)" + " " * 9000, files=best.run(fills, keep=True).next_files({}))
    assert (came.status, came.exit, came.lost) == ("disk", None, "")


def test_a_folder_that_its_program_closes_gives_no_files_back(as_ordinary_user):
    code = """
outcome = Sandbox(Sandboxing(level='rlimits')).run("import os; os.chmod('.', 0)", keep=True)
print(json.dumps([outcome.status, outcome.files, outcome.files_cut]))
"""
    assert as_ordinary_user(code) == ["ok", None, True]


@pytest.mark.parametrize(
    ("first", "files"),
    [
        ("os.remove('main.py'); os.mkdir('main.py'); open('main.py/x', 'w').close()", {"data": b"1"}),
        ("os.remove('data'); os.mkdir('data'); open('data/x', 'w').write('2')", {"data/x": b"2"}),
        ("os.mkdir('a'); os.rmdir('a'); open('a', 'w').close()", {"data": b"1", "a": b""}),
        ("os.remove('data')", {}),
        ("os.rename('data', 'ä\\n\U0001f600')", {"ä\n\U0001f600": b"1"}),
        ("os.rename('data', b'\\xff')", {}),
        ("[(os.mkdir('d' * 255), os.chdir('d' * 255)) for _ in range(16)]; open('x', 'w').close()", {"data": b"1"}),
        ("[(os.mkdir('d'), os.chdir('d')) for _ in range(18)]; open('x', 'w').close()", {"data": b"1"}),
    ],
    ids=("main", "folder", "file", "deleted", "unicode", "bytes", "long", "deep"),
)
def test_whatever_a_program_leaves_the_next_run_takes(best, first, files):
    left = best.run(f"import os\n{first}", files={"data": b"1"}, keep=True)
    assert left.status == "ok" and left.next_files({"data": b"1"}) == files, left
    assert left.files_cut == (first.startswith("[") or "xff" in first)
    second = best.run("print(2)", files=left.next_files({"data": b"1"}), keep=True)
    assert second.stdout == "2\n" and second.files == files


def test_many_folders_and_long_names_are_given_back_or_cut(best):
    """More directories than the launcher may open at a time; and more names than fit into a report."""
    roomy = Sandbox(Sandboxing(level=best.level, disk_mib=16, timeout_s=10.0))
    left = roomy.run("import os\nfor n in range(1060): os.mkdir(str(n))\nopen('1059/x', 'w').close()", keep=True)
    assert (left.status, left.files, left.files_cut) == ("ok", {"1059/x": b""}, False)
    left = roomy.run("for n in range(1000): open(f'{n:0255}', 'w').close()", keep=True)
    assert left.status == "ok" and left.files_cut and len(left.files) > 200
    assert roomy.run("print(2)", files=left.files).stdout == "2\n"


@pytest.mark.parametrize("level", ["namespaces+seccomp", "rlimits"])
@pytest.mark.parametrize(
    "files", [{"a": b"", "a/b": b""}, {"a/b": b"", "a": b""}, {"a" * 256: b""}, {"/".join(["a" * 255] * 17): b""}]
)
def test_files_that_no_folder_holds_are_an_error_of_the_program(best, level, files):
    came = Sandbox(Sandboxing(level=level)).run("print(1)", files=files, keep=True)
    assert (came.status, came.exit, came.stdout, came.lost) == ("error", None, "", "")
    assert "its files cannot be written: [Errno " in came.stderr
    assert came.next_files({"kept": b"1"}) == {"kept": b"1"}


def test_a_folder_of_any_depth_is_removed(monkeypatch, tmp_path):
    """A program of `rlimits` works in a directory of the machine."""
    monkeypatch.setattr(levels, "scratch_dir", lambda: tmp_path)
    deep = "import os\nfor _ in range(1100): os.mkdir('d'); os.chdir('d')"
    assert Sandbox(Sandboxing(level="rlimits")).run(deep).status == "ok"
    assert not list(tmp_path.iterdir())


def test_files_stay_as_they_were_after_a_program_that_is_ended(best):
    quick = Sandbox(Sandboxing(level=best.level, timeout_s=0.5))
    came = quick.run("import os, time; os.remove('a'); time.sleep(60)", files={"a": b"1"}, keep=True)
    assert came.status == "timeout" and came.files is None and came.next_files({"a": b"1"}) == {"a": b"1"}


def finished_process() -> process.SandboxedProcess:
    """A launcher that has ended without a report."""
    finished = subprocess.Popen(["/bin/true"], stdin=PIPE, stdout=PIPE, stderr=PIPE)
    program = process.SandboxedProcess(finished, lambda: None, stdin=b"", wall_s=5.0, output_bytes=10)
    process.supervise([program])
    return program


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100000,
        b'{"code": "0"}',
        b'{"code": true}',
        b'{"code": 0, "more": 1}',
        b'{"code": 0, "cpu_s": NaN}',
        b'{"code": 0, "cpu_s": -1}',
        b'{"code": 0, "files": {}}',
        b'{"code": 0, "files": [["x"]]}',
        b'{"code": 0, "files": [["x", 1]]}',
        b'{"code": 0, "files": [["x", -1], ["y", 1]]}',
        b'{"code": 0, "files": [["../x", 0]]}',
        b'{"failed": "the machine is broken"}',
        b'{"disk_full": true}',
    ],
)
def test_a_launchers_report_of_another_form_is_none(line):
    """At the level `rlimits` a program of root can write to the pipe: it loses its own sandbox, and ends no run."""
    program = finished_process()
    program.report += STARTED + line + b"\n"
    came = module._outcome(program, None, "rlimits")
    assert (came.status, came.files) == ("killed", None) and came.lost.endswith("exited with status 0 without a report")


def test_a_report_in_front_of_the_start_says_why_there_was_none():
    program = finished_process()
    program.report += b'{"failed": "no such library"}\n'
    with pytest.raises(SandboxError, match="no such library"):
        module._outcome(program, None, "rlimits")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open the pipe of a launcher")
@pytest.mark.parametrize("line", ["[]", '{"failed": "x"}'])
def test_a_program_that_writes_to_the_status_pipe_ends_no_run(line, monkeypatch):
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.0)
    outcomes = Sandbox(Sandboxing(level="rlimits")).run_many([WRITES_A_REPORT.replace("LINE", line), "print(1)"])
    assert [outcome.status for outcome in outcomes] == ["killed", "ok"] and outcomes[0].lost


def test_an_interpreter_below_the_sandboxs_own_disk_is_named(monkeypatch):
    monkeypatch.setattr(module, "_tried", {})
    python = "/tmp/env/bin/python"
    monkeypatch.setattr(levels, "layout", lambda: levels.InterpreterPaths(python, (python,), (), ()))
    with pytest.raises(SandboxUnavailable, match=rf"needs {python}, but the empty disk of the sandbox hides /tmp; run"):
        assert Sandbox(Sandboxing(level="namespaces")).level


@pytest.mark.parametrize(("cpu_s", "full"), [(0.5, 1), (1.0, 1), (1.2, 2), (1.5, 2), (2.5, 3)])
def test_processor_time_is_rounded_up(cpu_s, full):
    limits = dataclasses.replace(Sandbox().limits, cpu_s=cpu_s)
    spec = levels._specification(levels.SandboxTask({}), limits, "rlimits", None, "/none")
    assert launch._resource_limits(spec)[resource.RLIMIT_CPU] == (full, full + 1)
    assert f"cpu={full}:{full + 1}" in container.command("docker", "name", "image", limits)


def test_processor_time_that_is_over_is_a_timeout(best):
    """At its limit of processor time the kernel ends a program with SIGXCPU."""
    sandbox = Sandbox(Sandboxing(level=best.level))
    sandbox.limits = dataclasses.replace(sandbox.limits, cpu_s=1.0, wall_s=60.0)
    came = sandbox.run("while True: pass")
    assert (came.status, came.exit) == ("timeout", -24)


@pytest.mark.parametrize("level", ["namespaces+seccomp", "rlimits"])
def test_timers_are_counted(best, level):
    came = Sandbox(Sandboxing(level=level)).run(MAKES_TIMERS)
    assert came.status == "ok" and int(came.stdout) <= launch.PENDING_SIGNALS, came
