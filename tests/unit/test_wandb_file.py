"""A study as a sweep of W&B: the file, the command that an agent starts from it, and whose run the agent's is."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from rlhf_lab.cli.sweep_file import sweep_command
from rlhf_lab.config import command_line
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.stages import artifacts
from rlhf_lab.sweeps.wandb_file import provided_values, sweep_config
from rlhf_lab.trackers import wandb as tracker
from rlhf_lab.trackers.settings import Wandb
from rlhf_lab.trackers.tracker import TrackedStage


def agent_words(config: dict[str, Any], chosen: dict[str, Any]) -> list[str]:
    """The words that W&B's agent starts for these values, by its own functions."""
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    variables = utils.create_sweep_command_args({"args": {name: {"value": value} for name, value in chosen.items()}})
    variables |= {"env": ["/usr/bin/env"], "interpreter": ["python"], "program": [config["program"]]}
    words: list[str] = []
    for word in utils.create_sweep_command(list(config["command"])):
        is_variable = word.startswith("${") and word.endswith("}")
        words += variables[word[2:-1]] if is_variable else [word]
    return words


def test_a_study_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "buffers.yaml"
    sweep_command(["+recipe=study/buffers", f"to={file}"])
    config = yaml.safe_load(file.read_text())
    assert config["method"] == "grid" and config["metric"] == {"name": "final/gold", "goal": "maximize"}
    assert config["parameters"] == {
        "algorithm.buffer": {"values": ["current", "rolling", "full"]},
        "seed": {"values": [0, 1, 2]},
    }
    assert config["command"][:5] == ["${env}", "${interpreter}", "-m", "rlhf_lab", "+recipe=study/buffers"]
    assert config["command"][-1] == "${args_no_hyphens}"


def test_an_agent_starts_one_job_of_the_study(tmp_path: Path) -> None:
    """The very stage that the study itself would build."""
    study = command_line.check_command(["+recipe=study/buffers"])
    config = sweep_config(study, "random")
    words = agent_words(config, {"algorithm.buffer": "rolling", "seed": 1})
    assert words[:4] == ["/usr/bin/env", "python", "-m", "rlhf_lab"]
    job = command_line.check_command(words[4:])
    assert job.study is None and len(job.jobs) == 1
    assert job.configs[0].algorithm.buffer == "rolling" and job.configs[0].seed == 1
    assert isinstance(job.configs[0].tracker, Wandb)
    number = study.jobs.index({"algorithm.buffer": "rolling", "seed": 1})
    assert (
        artifacts.plan(job.configs[0], "study/buffers").key
        == artifacts.plan(study.configs[number], "study/buffers").key
    )


def test_values_survive_the_agent() -> None:
    """Text that Hydra would read as something else, lists, booleans and nothing."""
    words = [
        "+recipe=dpo",
        "model.lora.targets=null,[q_proj,v_proj]",
        "stages.sft.algorithm.epochs=1,2",
        "tracker=wandb",
        "tracker.project=mine",
        "tracker.entity=team",
    ]
    config = sweep_config(command_line.check_command(words), "grid")
    assert (config["project"], config["entity"]) == ("mine", "team")
    assert config["parameters"]["model.lora.targets"] == {"values": ["null", "[q_proj,v_proj]"]}
    chosen = {"model.lora.targets": "[q_proj,v_proj]", "++stages.sft.algorithm.epochs": 2}
    assert chosen.keys() == config["parameters"].keys()
    checked = command_line.check_command(agent_words(config, chosen)[4:]).configs[0]
    assert list(checked.model.lora.targets) == ["q_proj", "v_proj"]
    assert checked.stages["sft"]["algorithm"]["epochs"] == 2


def test_ranges() -> None:
    command = command_line.check_command(["+recipe=dpo", "algorithm.beta=0.03,1.0", "algorithm.batch_size=16,32"])
    config = sweep_config(command, "bayes", continuous=["algorithm.beta", "algorithm.batch_size"], runs=20)
    assert config["parameters"]["algorithm.beta"] == {"distribution": "log_uniform_values", "min": 0.03, "max": 1.0}
    assert config["parameters"]["algorithm.batch_size"] == {"distribution": "int_uniform", "min": 16, "max": 32}
    assert config["run_cap"] == 20 and config["method"] == "bayes"
    # 1 and 30 are typed without a point, but β need not be a whole number
    command = command_line.check_command(["+recipe=dpo", "algorithm.beta=1,30"])
    config = sweep_config(command, "random", continuous=["algorithm.beta"])
    assert config["parameters"]["algorithm.beta"] == {"distribution": "log_uniform_values", "min": 1, "max": 30}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+recipe=dpo"], "nothing is swept"),
        (["+recipe=study/buffers", "continuous=seed"], "have no grid"),
        (["+recipe=study/buffers", "method=random", "continuous=algorithm.buffer"], "two different numbers"),
        (["+recipe=study/buffers", "method=random", "continuous=algorithm.beta"], "is not swept"),
        (["+recipe=dpo", "algorithm.beta=0.1,0.3", "study.metrics=[kl]", "method=bayes"], "direction, and kl has none"),
        (["+recipe=study/mitigations"], "it knows no study.arms"),
    ],
)
def test_what_cannot_be_a_sweep_is_explained(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sweep_command(words)


def test_what_an_agent_chose_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_SWEEP_PARAM_PATH", raising=False)
    assert provided_values() == {}
    file = tmp_path / "config.yaml"
    file.write_text("wandb_version: 1\nalgorithm.beta:\n  value: 0.3\n++stages.sft.seed:\n  value: 2\n")
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(file))
    assert provided_values() == {"algorithm.beta": 0.3, "stages.sft.seed": 2}


@pytest.mark.parametrize(("swept", "seen"), [({"seed": 1}, "s1"), ({}, None)])
def test_the_agents_run_is_that_of_the_last_stage(
    swept: dict[str, Any], seen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    monkeypatch.setenv("WANDB_RUN_ID", "r1")
    at_init: list[str | None] = []
    teardowns: list[int] = []
    client = SimpleNamespace(
        init=lambda **settings: at_init.append(os.environ.get("WANDB_SWEEP_ID")),
        teardown=lambda: teardowns.append(len(at_init)),
        Settings=dict,
    )
    subject = TrackedStage("id", "sft", "sft", "g", [], {"swept": swept}, "", tmp_path, False)
    tracker._init_run(client, Wandb(), subject, "offline")
    assert at_init == [seen] and teardowns == [0]  # before `init`, since the client reads its environment once
    assert os.environ["WANDB_SWEEP_ID"] == "s1" and os.environ["WANDB_RUN_ID"] == "r1"
