"""Environments of pinned packages (core/pinned_packages.py): made once, complete or absent, renewed."""

from __future__ import annotations

import os
import sys

import pytest

from rlhf_lab.core.pinned_packages import MARKER, EnvironmentMissing, PinnedPackages
from rlhf_lab.sampling.vllm import environment as vllm

PACKAGES = tuple(vllm.ENVIRONMENTS.values())


@pytest.mark.parametrize("packages", PACKAGES, ids=lambda packages: packages.name)
def test_an_environment_that_is_absent_or_old(tmp_path, monkeypatch, packages):
    with pytest.raises(EnvironmentMissing, match=rf"there is no environment of {packages.title} .* setup"):
        packages.ready(tmp_path / "none")
    (tmp_path / MARKER).write_text("other pins", encoding="ascii")
    with pytest.raises(EnvironmentMissing, match="from other pins"):
        packages.ready(tmp_path)
    monkeypatch.setenv(packages.variable, str(tmp_path / "named"))
    assert packages.default_dir() == tmp_path / "named"
    monkeypatch.delenv(packages.variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert packages.default_dir() == tmp_path / "rlhf_lab" / f"{packages.name}-{packages.pins()[:12]}"


def _packages(tmp_path) -> PinnedPackages:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("# a comment\nthing==1.0\n", encoding="utf-8")
    return PinnedPackages("Thing", "thing", "RLHF_LAB_THING", requirements, "python -m rlhf_lab thing setup")


def test_making_an_environment(tmp_path):
    """pip is replaced by a program that fails, then by one that takes too long, then by one that works."""
    packages = _packages(tmp_path)
    directory = tmp_path / "made"

    def installing(code: str, timeout_s: float = 60.0):
        def install(made):
            made.mkdir()
            packages.run_step("pip install", [sys.executable, "-c", code], dict(os.environ), timeout_s)

        return install

    failing = installing("print('collecting'); print('ERROR: no index'); raise SystemExit(1)")
    with pytest.raises(EnvironmentMissing, match="pip install failed: ERROR: no index"):
        packages.set_up(failing, directory)
    assert not directory.exists() and not list(tmp_path.glob(".made.part*"))
    with pytest.raises(EnvironmentMissing, match=r"took more than 0.1 s"):
        packages.set_up(installing("import time; time.sleep(60)", 0.1), directory)
    assert packages.set_up(installing(""), directory).was_created
    assert packages.ready(directory) == directory
    assert not packages.set_up(failing, directory).was_created
    packages.requirements.write_text("# another comment\nthing==1.0\n", encoding="utf-8")
    assert not packages.set_up(failing, directory).was_created, "a comment is no pin"
    packages.requirements.write_text("thing==1.1\n", encoding="utf-8")
    assert packages.set_up(installing(""), directory).was_created


def test_files_of_others_are_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(EnvironmentMissing, match="has files that no environment"):
        _packages(tmp_path).set_up(lambda made: made.mkdir(), tmp_path)


def test_pip_gets_the_pins_and_installs_nothing_else(tmp_path, monkeypatch):
    packages = _packages(tmp_path)
    commands = []
    monkeypatch.setattr(PinnedPackages, "run_step", lambda self, what, command, *rest: commands.append(command))
    packages.pip_install("python", ["--no-deps", "--target", "here"], 5.0)
    (command,) = commands
    assert command[:4] == ["python", "-m", "pip", "install"] and "--no-deps" in command
    assert command[-4:] == ["--target", "here", "--requirement", str(packages.requirements)]
