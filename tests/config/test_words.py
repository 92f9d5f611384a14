"""Words that are no settings, flags between settings, Hydra's own keys, and the command line as it is kept."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support import checked, command_inside

from rlhf_lab import __main__, __version__, main
from rlhf_lab.config import check, inventory, root, words
from rlhf_lab.core import invocation
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.stages import execute


def refused(directory: Path, *arguments: str) -> str:
    status, printed = command_inside(directory, *arguments)
    assert status == 2, printed
    assert "nothing was run" in printed
    assert not list(directory.iterdir())
    return printed


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ppo"], "ppo is a recipe; write +recipe=ppo"),
        (["recipe=ppo"], "write +recipe=ppo"),
        (["lst"], "lst is not a command; did you mean list?"),
        (["+recipe=dpo", "dpoo"], "did you mean +recipe=dpo?"),
        (["+recipe=sft", "algorithm"], "choose one of its options with algorithm=NAME"),
        (["+recipe=sft", "seed=0,", "1"], "seed=0, is cut off, perhaps at a space"),
        (["+recipe=sft", "question=what (ever"], "question=what (ever: its value cannot be parsed"),
        (["+recipe=ppo", "algorithm.beta=interval(0,1)"], "such as algorithm.beta=0.1,0.3,1"),
        (["+recipe=dpo", "algorithm.beta=range(3,1)"], "algorithm.beta=range(3,1): the range has no values"),
        (["+recipe=dpo", "~reward"], "~reward: reward cannot be removed, only replaced: reward=NAME"),
        (["+recipe=dpo", "~recipe"], "~recipe: recipe cannot be removed, only replaced: +recipe=NAME"),
        (["--config-dir", ".", "explain", "dpo"], "explain is a command, which comes first"),
        (["+recipe=sft", "--nope"], "unrecognized arguments: --nope"),
        (["+recipe=sft", "--config-dir", "nowhere"], "--config-dir nowhere: there is no such directory"),
        (["+recipe=sft", "--config-name", "x"], "write +recipe=NAME"),
        (["+recipe=sft", "--cfg", "job", "algorithm.betta=1"], "algorithm.betta is not a setting"),
    ],
)
def test_a_word_that_is_no_setting_is_explained(tmp_path: Path, arguments: list[str], expected: str) -> None:
    assert expected in refused(tmp_path, *arguments)


@pytest.mark.parametrize("key", [*words.UNUSABLE_HYDRA_KEYS, "hydra.sweeper.params.x", "hydra.callbacks"])
def test_keys_of_hydra_that_do_nothing_are_refused(key: str) -> None:
    problems: list[str] = []
    usable = words.parse(["seed=0,1", f"++{key}=x"], [], problems)
    assert [override.input_line for override in usable] == ["seed=0,1"]
    (problem,) = problems
    assert re.search(r"outputs=DIR|remove this key|--config-dir|algorithm\.beta=", problem)


@pytest.mark.parametrize("seed", ["0", "0,1"])
def test_another_sweeper_is_refused_before_hydra_looks_for_it(seed: str, tmp_path: Path) -> None:
    printed = refused(tmp_path, "+recipe=sft", f"seed={seed}", "hydra/sweeper=optuna")
    assert "hydra/sweeper=optuna: a study plans its jobs before they start; name the values" in printed
    assert "Could not find" not in printed


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("seed=glob(*)", "name the values, such as seed=0,1,2"),
        ("tracker=glob(wan*)", "name the options: tracker=wandb"),
    ],
)
def test_a_glob_is_answered_with_the_options_it_stands_for(word: str, instead: str, tmp_path: Path) -> None:
    assert f"{word}: glob() is not supported; {instead}" in refused(tmp_path, "+recipe=sft", word)


def test_keys_of_hydra_that_choose_where_jobs_run_need_jobs(tmp_path: Path) -> None:
    given = ["hydra/launcher=basic", "hydra.launcher.timeout_min=3", "hydra.job.name=x"]
    words.check_hydra(given, sweep=True)
    with pytest.raises(ConfigError) as caught:
        words.check_hydra(given, sweep=False)
    assert len(caught.value.problems) == 3
    assert "name several values, e.g. seed=0,1" in refused(tmp_path, "+recipe=sft", given[0])
    assert "outputs=DIR" in refused(tmp_path, "+recipe=sft", "hydra.run.dir=x")


@pytest.mark.parametrize("setting", ["hydra.launcher.nodes", "hydra.launcher.tasks_per_node"])
def test_a_launcher_may_not_start_a_job_twice(setting: str) -> None:
    with pytest.raises(ConfigError, match="would start every job of the sweep that many times"):
        words.check_hydra([f"{setting}=2"], sweep=True)
    words.check_hydra([f"{setting}=1", "hydra.launcher.gpus_per_node=2"], sweep=True)


def test_flags_may_stand_between_settings(tmp_path: Path) -> None:
    flags = words.split(["+recipe=sft", "--config-dir", str(tmp_path), "seed=0,1", "-m", "model=micro"])
    assert (flags.config_dir, flags.multirun) == (str(tmp_path), True)
    assert flags.overrides == ["+recipe=sft", "seed=0,1", "model=micro"]


@pytest.mark.parametrize("arguments", [[], ["list"], ["help"]])
def test_recipes_are_listed(tmp_path: Path, arguments: list[str]) -> None:
    status, printed = command_inside(tmp_path, *arguments)
    assert status == 0
    assert all(name in printed for name in inventory.recipes())
    assert "report DIR" in printed


def test_version_names_the_commit(tmp_path: Path) -> None:
    status, printed = command_inside(tmp_path, "--version")
    assert (status, printed.split()[:2]) == (0, ["rlhf_lab", __version__])
    here = Path(main.__file__).parent
    sha = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True)
    if sha.returncode == 0:
        assert sha.stdout.strip() in printed


def test_cfg_job_shows_what_a_run_would_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("model=micro", "stages.sft.algorithm.epochs=2")
    assert command_inside(tmp_path, "+recipe=ppo", *arguments, "--cfg", "job") == (0, "")
    values = yaml.safe_load(capsys.readouterr().out)
    assert values == root.to_values(checked("ppo", *arguments))
    assert values["algorithm"]["lr"] == values["model"]["tuned"]["ppo"]["lr"]
    assert root.to_values(check.check(values)) == values


@pytest.mark.parametrize(
    ("program", "started_as"),
    [("/usr/local/bin/rlhf-lab", ["rlhf-lab"]), ("/home/a/rlhf_lab/__main__.py", ["python", "-m", "rlhf_lab"])],
)
def test_the_command_line_can_be_pasted(program: str, started_as: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["+recipe=ppo", "reward=[bt,programmatic]", "question=What now?", "reward.weights={bt:.7}", "a=$HOME"]
    monkeypatch.setenv(invocation.COMMAND, "of somebody else")
    monkeypatch.setattr(sys, "argv", [program, *typed])
    invocation.remember()
    assert shlex.split(invocation.command_line()) == [*started_as, *typed]
    echoed = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {invocation.command_line()}"], capture_output=True, text=True, check=True
    )
    assert echoed.stdout.splitlines() == [*started_as, *typed]


def test_torchrun_is_part_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(invocation.COMMAND, "")
    monkeypatch.setattr(sys, "argv", ["/x/rlhf_lab/__main__.py", "+recipe=sft"])
    invocation.remember()
    assert invocation.command_line() == "torchrun --standalone --nproc_per_node=2 -m rlhf_lab +recipe=sft"


def test_nothing_was_run_is_said_only_when_it_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> None:
        raise ConfigError("it shows only now")

    def begin_stage(stage: object, started: float) -> None:
        execute._build(stage, lambda role: None)  # type: ignore[arg-type]

    monkeypatch.setattr(execute.processes, "requested_processes", wrong)
    monkeypatch.setattr(main, "run_stage", begin_stage)
    status, printed = command_inside(tmp_path, "+recipe=sft")
    assert (status, printed.splitlines()[0]) == (2, "1 problem; completed stages are kept:")
    monkeypatch.setattr(main, "run_stage", wrong)
    assert "nothing was run" in command_inside(tmp_path, "+recipe=sft")[1]


def test_ctrl_c_during_the_imports_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "_run", stop)
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert (ended.value.code, capsys.readouterr().out) == (130, "interrupted: nothing was run\n")


@pytest.mark.parametrize("arguments", [[], ["+recipe=ppo", "--cfg", "job"]])
def test_a_closed_pipe_leaves_no_traceback(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "rlhf_lab", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
