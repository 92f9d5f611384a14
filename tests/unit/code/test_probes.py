"""Attacks: none escapes from the best level, as root and as an ordinary user; the lower levels are measured."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json
from rlhf_lab.packs.code.sandbox import command
from rlhf_lab.packs.code.sandbox.probes import reach, table, targets, use
from rlhf_lab.packs.code.sandbox.probes.candidates import CANDIDATES
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox, why_not
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

QUICK = (
    "TCP to this machine",
    "vsock to the host of a virtual machine",
    "a file of this user",
    "source of the lab",
    "link out of its folder",
    "compiled module for the next run",
    "environment of all processes",
    "signal to a process of this user",
    "kill its parent",
    "prlimit64",
    "end what reports on it, by a limit of processor time",
    "watch on files that others open",
    "lock on a file that others use",
    "pair of netlink sockets",
    "shared memory that is hardly mapped",
    "shared mapping of /dev/zero",
    "forged report on every descriptor",
    "report of another form on the status pipe",
    "folder in place of its program",
    "folder in place of a file that it was given",
    "path that is too long to be written again",
    "more folders than who reads them may open",
    "names that fill the report",
    "timers",
    "memory behind a descriptor",
    "nested user namespace",
    "clone3 into a namespace",
    "mount",
)
MEASURED = """
from rlhf_lab.packs.code.sandbox.probes.table import probe_level
reason = why_not(LEVEL)
print(json.dumps(reason or [dataclasses.asdict(finding) for finding in probe_level(LEVEL)]))
"""


def test_the_documentation_counts_the_probes():
    """The numbers of docs/code/sandbox.md; no other text names one."""
    page = (Path(__file__).parents[3] / "docs" / "code" / "sandbox.md").read_text()
    programs, candidates = len(PROBES), len(CANDIDATES)
    assert programs == len(table.PROBES), "names differ"
    assert {*reach.NETWORK, *use.KERNEL} <= PROBES.keys()
    assert f"\n{programs + candidates} probes: {programs} programs, and {candidates} candidates that" in page
    kinds = Counter(attack.kind for attack in table.PROBES)
    rows = re.findall(r"^\| ([^|:]+)[^|]*\| (\d+) \|(?: \d+ \|){5}$", page, re.MULTILINE)
    together = kinds["disk"] + kinds["time"] + kinds["output"]
    single = {kind: kinds[kind] for kind in ("network", "files", "secrets", "processes", "memory", "kernel")}
    expected = {**single, "disk, time, output": together, "grader": candidates, "all": programs + candidates}
    assert {kind.strip(): int(count) for kind, count in rows} == expected


PROBES = {attack.name: attack for attack in table.PROBES}


@pytest.fixture(scope="module")
def probe_targets():
    with targets.probe_targets() as generated:
        yield generated


@pytest.mark.parametrize("name", QUICK)
def test_quick_probes_do_not_escape(best, probe_targets, name):
    conclusion = table.run_probe(PROBES[name], best, "namespaces+seccomp", probe_targets)
    assert not conclusion.escaped, conclusion


def test_an_escape_is_seen(probe_targets):
    """At the level that stops little; the same probes as above."""
    sandbox = Sandbox(Sandboxing(level="rlimits", timeout_s=4.0, memory_mib=128, disk_mib=4))
    for name in ("TCP to this machine", "a file of this user", "signal to a process of this user"):
        assert table.run_probe(PROBES[name], sandbox, "rlimits", probe_targets).escaped, name
    harmless = table.Probe("harmless", "files", "stopped('nothing')")
    assert not table.run_probe(harmless, sandbox, "rlimits", probe_targets).escaped


@pytest.mark.slow
def test_no_probe_escapes_from_the_best_level(best):
    findings = table.probe_level("namespaces+seccomp")
    assert len(findings) >= 80
    assert not [conclusion for conclusion in findings if conclusion.escaped]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the test above has run as an ordinary user")
def test_no_probe_escapes_from_an_ordinary_users_best_level(as_ordinary_user):
    findings = as_ordinary_user(MEASURED.replace("LEVEL", "'namespaces+seccomp'"))
    if isinstance(findings, str):
        pytest.skip(f"an ordinary user has no user namespace here: {findings}")
    assert len(findings) >= 80
    assert not [conclusion for conclusion in findings if conclusion["escaped"]]


@pytest.mark.slow
def test_the_lower_levels_stop_what_they_claim(as_ordinary_user):
    """Statements of docs/code/sandbox.md about them, measured as an ordinary user without root rights."""
    if reason := why_not("namespaces"):
        pytest.skip(reason)
    findings = as_ordinary_user(MEASURED.replace("LEVEL", "'namespaces'"))
    names = {conclusion["name"]: conclusion for conclusion in findings}
    escaped = {name for name, conclusion in names.items() if conclusion["escaped"]}
    kinds = {names[name]["kind"] for name in escaped}
    assert kinds <= {"kernel", "network", "memory", "files", "processes"}
    assert {name for name in escaped if names[name]["kind"] == "processes"} <= {"prlimit64"}  # of its own process 1
    assert {name for name in escaped if names[name]["kind"] == "files"} <= {
        "watch on files that others open",
        "signal when others change a folder",
        "lock on a file that others use",
    }
    assert escaped & {"TCP to this machine", "UDP to this machine", "abstract Unix socket"} == set()


def test_the_command_says_what_works(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "cost", lambda sandbox, level: (40.0, 30.0))
    monkeypatch.setattr(command, "has_groups", lambda limits: False)
    monkeypatch.setattr(command, "why_not", lambda level: "" if level == "rlimits" else "not here")
    command.run([f"to={tmp_path / 'levels.json'}"])
    values = read_json(tmp_path / "levels.json")
    assert values["levels"]["rlimits"] == {"works": True, "reason": "", "wall_ms_cpu_ms": [40.0, 30.0]}
    assert values["levels"]["container"]["reason"] == "not here" and values["probes"] == []
    shown = " ".join(capsys.readouterr().out.split())
    assert "not here" in shown and "kernel memory" in shown
    assert values["control_group"] is False and "is not counted" in shown


def test_wrong_words():
    for word in ("probe=true", "probes=maybe", "level=jail"):
        with pytest.raises(ConfigError):
            command.run([word])
