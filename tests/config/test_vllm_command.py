"""`python -m rlhf_lab vllm`: the environment, and servers for rollout.mode=server (cli/vllm.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_lab.cli.vllm import vllm_command
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.pinned_packages import MARKER, EnvironmentMissing
from rlhf_lab.sampling.vllm import server
from rlhf_lab.sampling.vllm.environment import ENVIRONMENTS, process_environment


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["install"], "'install' is neither"),
        (["setup", "here"], "'here' is not an option of the form name=value"),
        (["setup", "device=tpu"], "device=tpu"),
        (["serve"], "is not a model directory; write vllm serve model=DIR"),
        (["serve", "model=/nowhere"], "model=/nowhere is not a model directory"),
    ],
)
def test_wrong_commands(words, says):
    with pytest.raises(ConfigError) as error:
        vllm_command(words)
    assert any(says in problem for problem in error.value.problems), error.value.problems


def test_the_command_says_whether_the_environment_is_there(tmp_path, capsys):
    vllm_command([f"folder={tmp_path}", "device=cpu"])
    assert f"there is no environment of vLLM in {tmp_path}" in capsys.readouterr().out
    (tmp_path / MARKER).write_text(ENVIRONMENTS["cpu"].pins(), encoding="ascii")
    vllm_command([f"folder={tmp_path}", "device=cpu"])
    assert f"{tmp_path}: ready" in capsys.readouterr().out
    vllm_command(["setup", f"folder={tmp_path}", "device=cpu"])
    assert "already exists" in capsys.readouterr().out


def test_a_server_in_the_foreground(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 640}))
    with pytest.raises(EnvironmentMissing, match="run: python -m rlhf_lab vllm setup"):
        vllm_command(["serve", f"model={tmp_path}", f"folder={tmp_path / 'none'}", "device=cpu"])
    served = []
    monkeypatch.setattr(server, "serve", lambda *arguments: served.append(arguments) or 7)
    assert vllm_command(["serve", f"model={tmp_path}", "port=8001", "dtype=bfloat16", "device=cpu"]) == 7
    ((serving, host, port, directory),) = served
    assert (host, port, directory) == ("127.0.0.1", 8001, None)
    assert (serving.model, serving.dtype, serving.context_tokens) == (Path(tmp_path), "bfloat16", 640)
    assert serving.adapter_rank == 0
    vllm_command(["serve", f"model={tmp_path}", "adapter_rank=12", "device=cpu"])
    assert served[-1][0].adapter_rank == 16
    with pytest.raises(ConfigError, match="adapter_rank=513 must be between 0 and 512"):
        vllm_command(["serve", f"model={tmp_path}", "adapter_rank=513", "device=cpu"])


def test_a_server_does_not_take_over_the_packages_of_the_lab(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "/lab")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    variables = process_environment("cpu", tmp_path)
    assert variables["PYTHONPATH"] == str(tmp_path) and "RANK" not in variables
    assert "TORCHELASTIC_USE_AGENT_STORE" not in variables, "the server would wait for torchrun's store"
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "7", "what the user says goes first"
    assert variables["VLLM_SERVER_DEV_MODE"] == "1" and variables["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in process_environment("cuda")
