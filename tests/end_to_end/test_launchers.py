"""Launchers of other projects start a run: `accelerate launch` with its config file, and torchrun on two machines."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_lab.core.files import read_json

pytestmark = pytest.mark.slow
TIMEOUT_S = 600  # four interpreters start at once, also on a busy machine
ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "num_machines": 1,
    "num_processes": 2,
    "machine_rank": 0,
    "main_process_port": 0,
    "mixed_precision": "no",
    "fsdp_config": {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_activation_checkpointing": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    },
}
"""Config file for two processes and FSDP 2, as `accelerate config` writes it."""


LAUNCH = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]


def write_config(fresh: Any, values: dict[str, Any]) -> Path:
    file: Path = fresh.directory / "accelerate.yaml"
    file.write_text(yaml.safe_dump({**ACCELERATE, **values}))
    return file


def accelerate(fresh: Any, *arguments: str, **values: Any) -> subprocess.CompletedProcess[str]:
    """Run a command with `accelerate launch` and a config file with these values."""
    file = write_config(fresh, values)
    return subprocess.run(
        [*LAUNCH, "--config_file", str(file), "-m", "rlhf_lab", *arguments],
        cwd=fresh.directory,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def metric(directory: Path, name: str) -> float:
    result = read_json(directory / "result.json")
    assert result["status"] == "completed"
    mean: float = result["metrics"][name]["mean"]
    return mean


def memory_fraction(directory: Path) -> float:
    """Return the fraction of the trained parameters, in float32, that one process has in memory."""
    result = read_json(directory / "result.json")
    full = 4 * result["metrics"]["parameters"] / 2**20
    measured: float = result["training"]["memory/parameters"]
    return measured / full


def test_accelerate_starts_two_processes_with_the_settings_of_its_file(fresh, lab, sized):
    done = accelerate(fresh, "+recipe=sft", *sized("sft"))
    assert done.returncode == 0, done.stdout + done.stderr
    line = "accelerate launch: sharding=fsdp_full (fsdp_reshard_after_forward=true), sharding.checkpointing=true"
    assert done.stdout.count(line) == 1, done.stdout
    directory = fresh.stage(done.stdout, "sft")
    settings = yaml.safe_load((directory / "config.yaml").read_text())["sharding"]
    assert settings["kind"] == "fsdp" and settings["reshard_after_forward"] and settings["checkpointing"]
    assert memory_fraction(directory) == pytest.approx(1 / 2, rel=0.01)
    command = read_json(directory / "manifest.json")["command"]
    assert command.startswith("torchrun ") and command.endswith(" sharding=fsdp_full sharding.checkpointing=true")
    expected = lab.completed("sft")["sft"]["metrics"]["heldout_nll"]["mean"]
    assert metric(directory, "heldout_nll") == pytest.approx(expected, rel=1e-3)


def test_a_command_that_contradicts_accelerate_runs_nothing(fresh, sized):
    done = accelerate(fresh, "+recipe=sft", *sized("sft"), "sharding=ddp")
    assert done.returncode != 0
    assert "sharding=ddp, but accelerate launch was told fsdp_reshard_after_forward=true" in done.stdout
    assert not list((fresh.directory / "outputs").glob("runs/sft-*"))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def start(fresh: Any, command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=fresh.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def start_agents(fresh: Any, *arguments: str) -> list[subprocess.Popen[str]]:
    """Start torchrun once for each of two machines, here both on this one, with one process each."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=0"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=1", "-m", "rlhf_lab"),
    ]
    return [start(fresh, [*command, *arguments]) for _ in range(2)]


def outputs_of(agents: list[subprocess.Popen[str]]) -> list[str]:
    return [agent.communicate(timeout=TIMEOUT_S)[0] for agent in agents]


def test_two_machines_train_together(fresh, lab, sized):
    """SFT, then a reward model: both stages are built by both machines, and the result is printed once."""
    command = ("+recipe=reward_model", *sized("reward_model"), "sharding=fsdp_full")
    agents = start_agents(fresh, *command)
    outputs = outputs_of(agents)
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(outputs)
    (main,) = (output for output in outputs if "\nreport" in output)
    expected = lab.completed("reward_model")
    for recipe, name in (("sft", "heldout_nll"), ("reward_model", "accuracy")):
        directory = fresh.stage(main, recipe)
        assert memory_fraction(directory) == pytest.approx(1 / 2, rel=0.01)
        assert metric(directory, name) == pytest.approx(expected[recipe]["metrics"][name]["mean"], rel=1e-3)
    again = outputs_of(start_agents(fresh, *command))
    assert sum(output.count("  reuse") for output in again) == 2


@pytest.mark.long
def test_two_machines_of_accelerate(fresh, lab, sized):
    """The second machine has the same config file and its own rank; MULTI_GPU without a plug-in is DDP."""
    values = {"num_machines": 2, "main_process_ip": "127.0.0.1", "main_process_port": free_port()}
    file = write_config(fresh, {**values, "distributed_type": "MULTI_GPU", "rdzv_backend": "static"})
    ranks = [["--machine_rank", str(rank), "-m", "rlhf_lab", "+recipe=sft", *sized("sft")] for rank in range(2)]
    agents = [start(fresh, [*LAUNCH, "--config_file", str(file), *words]) for words in ranks]
    outputs = outputs_of(agents)
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(outputs)
    assert "accelerate launch: sharding=ddp (2 processes)" in outputs[0]
    expected = lab.completed("sft")["sft"]["metrics"]["heldout_nll"]["mean"]
    assert metric(fresh.stage(outputs[0], "sft"), "heldout_nll") == pytest.approx(expected, rel=1e-3)


@pytest.mark.long
def test_a_lost_machine_ends_the_run_and_the_same_command_resumes(fresh, sized):
    steps = ("algorithm.epochs=6", "checkpoint.every_steps=2", "algorithm.log_every_steps=1", "sharding=ddp")
    command = ("+recipe=sft", *sized("sft"), "algorithm.optimizer=adamw", *steps)
    agents = start_agents(fresh, *command)
    runs = fresh.directory / "outputs" / "runs"
    deadline = time.monotonic() + 120
    while not any(runs.glob("sft-*/checkpoint.pt")):
        assert time.monotonic() < deadline and agents[0].poll() is None, "no checkpoint was written"
        time.sleep(0.02)
    os.killpg(agents[1].pid, signal.SIGKILL)  # the agent; its process dies with it
    outputs = outputs_of(agents)
    assert agents[0].returncode != 0, outputs[0]
    agents = start_agents(fresh, *command)
    outputs = outputs_of(agents)
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(outputs)
    assert any("resumed at step" in output for output in outputs)
