"""The command `doctor`: what it examines, shows and writes, and its exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.doctor import examination, parts, report
from rlhf_lab.main import main


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """No optional parts, an empty working directory."""
    monkeypatch.setattr(parts, "LIBRARIES", ())
    monkeypatch.setattr(parts, "PROGRAMS", ())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rlhf_lab", "doctor", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


SMALL = ("model=micro", "data=mini_hh_small", "data.train_pairs=64", "data.test_pairs=8", "rollout.max_new_tokens=8")


def test_a_sound_machine_and_model_exit_0_and_leave_only_the_report(quick, monkeypatch):
    assert command(monkeypatch, *SMALL, "to=report.json") == 0
    assert [path.name for path in quick.rglob("*")] == ["report.json"]
    values = json.loads((quick / "report.json").read_text())
    assert values["subject"] == "a new model, not trained"
    groups = dict.fromkeys(check["group"] for check in values["checks"])
    assert list(groups) == ["environment", "storage", "model", "tokens", "forward pass", "training"]
    assert {check["status"] for check in values["checks"]} == {"pass", "skip"}
    assert str(Path.home()) not in (quick / "report.json").read_text()


@pytest.mark.parametrize(
    ("home", "text", "shown"),
    [
        ("/home/ann", "/home/ann/x and HOME=/home/ann", "~/x and HOME=~"),
        ("/home/ann", "/home/anna/x, /mnt/home/ann/x", "/home/anna/x, /mnt/home/ann/x"),
        ("/", "1/2 of /data", "1/2 of /data"),
    ],
)
def test_the_home_directory_is_replaced_as_a_path(monkeypatch, home, text, shown):
    monkeypatch.setattr(Path, "home", lambda: Path(home))
    assert report.as_values([], text)["subject"] == shown


@pytest.mark.parametrize("words", [[], ["outputs=elsewhere"], ["tracker=files", "to=report.json"]])
def test_where_results_go_does_not_ask_for_the_model(quick, monkeypatch, words):
    monkeypatch.setattr(examination, "_examine", lambda *arguments: pytest.fail("the model was examined"))
    assert command(monkeypatch, *words) == 0


def test_a_failed_check_exits_1_and_a_wrong_setting_2(quick, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert command(monkeypatch) == 1
    with pytest.raises(LabError, match=r"^1 of \d+ checks failed: threads; follow the hints above$"):
        examination.run([])
    assert command(monkeypatch, "model.hiden=3") == 2
    with pytest.raises(ConfigError, match="hidden"):
        examination.run(["model.hiden=3"])


def test_a_model_that_does_not_load_is_a_finding(quick, monkeypatch):
    (quick / "empty").mkdir()
    settings = ("model=hf", "model.path=./empty", "runtime.threads=1", "data=mini_hh_small", "to=report.json")
    assert command(monkeypatch, *settings) == 1
    failed = [c for c in json.loads((quick / "report.json").read_text())["checks"] if c["status"] == "fail"]
    assert [check["name"] for check in failed] == ["loads"]
    assert "empty cannot be loaded" in failed[0]["hint"]
