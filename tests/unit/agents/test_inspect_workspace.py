"""A folder and commands over the sandbox: rlhf_lab/packs/agents/inspect/workspace.py."""

from __future__ import annotations

import errno

import pytest

from rlhf_lab.packs.agents.inspect.workspace import ROOT, Workspace, relative
from rlhf_lab.packs.code.sandbox import sandbox
from rlhf_lab.packs.code.sandbox.outcome import SandboxUnavailable
from rlhf_lab.packs.code.sandbox.settings import Sandboxing


@pytest.fixture
def workspace():
    generated = Workspace()
    try:
        generated.level  # noqa: B018
    except SandboxUnavailable as reason:
        pytest.skip(f"no isolation on this machine: {reason}")
    return generated


def test_paths_stay_in_the_folder():
    assert [relative(path) for path in ("a", "./a/b", f"{ROOT}/a", "", ".", ROOT)] == ["a", "a/b", "a", "", "", ""]
    for path in ("/etc/passwd", "../a", f"{ROOT}/../a", "/work/samples", "a\0b", "~/../x"):
        with pytest.raises(PermissionError, match="write a path below it"):
            relative(path)


def test_files_are_written_and_read():
    workspace = Workspace(Sandboxing(disk_mib=1))
    workspace.write("a/b", b"1")
    assert workspace.read(f"{ROOT}/a/b") == b"1"
    with pytest.raises(FileNotFoundError):
        workspace.read("b")
    for path in ("a", ".", ROOT):
        with pytest.raises(IsADirectoryError):
            workspace.read(path)
    with pytest.raises(IsADirectoryError):
        workspace.write("a", b"")
    with pytest.raises(NotADirectoryError, match="a/b is a file of the sandbox"):
        workspace.write("a/b/c", b"")
    for path in ("x" * 256, "/".join(["x" * 255] * 9)):
        with pytest.raises(OSError, match="a path has at most 2048 bytes, and each name in it 255") as raised:
            workspace.write(path, b"")
        assert raised.value.errno == errno.ENAMETOOLONG
    assert workspace.files == {"a/b": b"1"}
    with pytest.raises(OSError, match="disk_mib=1"):
        workspace.write("c", bytes(2**20))
    with pytest.raises(PermissionError):
        workspace.write("/etc/cron.d/x", b"")


def test_a_level_that_gives_no_files_back_is_refused(monkeypatch):
    works = {"container", "namespaces"}  # and not namespaces+seccomp
    monkeypatch.setattr(sandbox, "why_not", lambda level, image: "" if level in works else "no")
    assert Workspace().level == "namespaces"
    with pytest.raises(SandboxUnavailable, match="container: it returns no files, which this program needs"):
        Workspace(Sandboxing(level="container")).run(["true"])


def test_files_last_from_one_command_to_the_next(workspace):
    workspace.write("main.py", b"print(open('in/put').read()[::-1])")  # the name that the sandbox's program has
    workspace.write("in/put", b"abc")
    first = workspace.run(
        ["bash", "-c", "python3 main.py > out; rm in/put; cat; echo $WORD; pwd"], b"said ", "", {"WORD": "x"}
    )
    assert (first.status, first.exit, first.stdout) == ("ok", 0, f"said x\n{ROOT}\n"), first.stderr
    assert workspace.files == {"main.py": b"print(open('in/put').read()[::-1])", "out": b"cba\n"}
    second = workspace.run(["python3", "-c", "import os; print(os.getcwd(), open('../out').read())"], directory="sub")
    assert second.stdout == f"{ROOT}/sub cba\n\n", second.stderr


def test_a_command_ends_as_it_ends(workspace):
    assert workspace.run(["sh", "-c", "exit 3"]).exit == 3
    missing = workspace.run(["no-such-program"])
    assert (missing.exit, missing.stderr) == (127, "no-such-program: not found\n")
    hidden = workspace.run(["cat", "/etc/shadow"])
    assert hidden.exit == 1 and hidden.stdout == ""


def test_a_command_that_is_ended_leaves_the_files_as_they_were(workspace):
    workspace.write("kept", b"1")
    slow = workspace.run(["sh", "-c", "rm kept; sleep 60"], timeout_s=1.0)
    assert slow.status == "timeout" and slow.wall_s < 30
    assert workspace.files == {"kept": b"1"}


def test_with_limits_alone_programs_are_the_machines():
    workspace = Workspace(Sandboxing(level="rlimits"))
    workspace.write("a", b"1")
    outcome = workspace.run(["bash", "-c", "cat a; echo 2 > b; command -v cat"])
    assert outcome.level == "rlimits" and outcome.stdout.startswith("1/"), outcome.stderr
    assert workspace.files == {"a": b"1", "b": b"2\n"}


def test_the_programs_take_no_room_of_the_files(workspace):
    workspace.settings = Sandboxing(disk_mib=2)
    workspace.write("large", bytes(2**21))
    assert workspace.run(["sh", "-c", "wc -c < large"]).stdout == f"{2**21}\n"
    full = workspace.run(["python3", "-c", "open('more', 'wb').write(bytes(2**22))"])
    assert full.status == "disk", full.stderr
    after = workspace.run(["rm", "large", "more"])  # a folder that is full can be emptied
    assert after.status == "ok" and workspace.files == {}, after.stderr


def test_whatever_a_command_leaves_the_next_one_takes(workspace):
    workspace.write("data", b"0")
    for command, files in {
        "rm data; mkdir data; echo 1 > data/x": {"data/x": b"1\n"},
        "cd ..; rm -r sample; touch sample": {},
    }.items():
        first = workspace.run(["sh", "-c", command])
        assert (first.status, workspace.files) == ("ok", files), first.stderr
        assert workspace.run(["sh", "-c", "echo 2"]).stdout == "2\n"
