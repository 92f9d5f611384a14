"""Stages with rollout=vllm around a server that answers as vLLM does: training, evaluation, a death and its resume."""

from __future__ import annotations

import pytest
import torch
from fake_vllm import FakeVllm
from support import ONE_LAYER, SMALL_WORLD, model_tensors, planned

from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.sampling.vllm.client import ServerFailed
from rlhf_lab.stages.execute import execute

pytestmark = pytest.mark.slow

ADAPTERS = {"rank": 16, "layers": ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]}
SIZES = {
    "grpo": (
        "needs.reward=null",
        "algorithm.prompts_per_iteration=4",
        "algorithm.group_size=4",
        "algorithm.batch_size=8",
        "algorithm.iterations=3",
        "algorithm.correction=token",
    ),
    "dpo_iterative": (
        "needs.reward=null",
        "algorithm.prompts_per_round=16",
        "algorithm.rounds=2",
        "algorithm.batch_size=8",
        "algorithm.corpus_fraction=0",
        "needs.baseline=null",
    ),
    "best_of_n": (),
}


@pytest.fixture
def stage(policy, tmp_path):
    """(recipe, directory, server) → a stage that samples from the server."""

    def make(recipe: str, directory: str, server: FakeVllm, *more: str):
        chosen = ("rollout=vllm", "rollout.mode=server", f"rollout.urls=[{server.url}]", "rollout.timeout_s=60")
        common = ("reward=length", f"needs.policy={policy}", f"outputs={tmp_path / directory}")
        return planned(recipe, *SMALL_WORLD, *ONE_LAYER, *common, *chosen, *SIZES[recipe], *more)

    return make


@pytest.mark.parametrize("recipe", list(SIZES))
def test_a_stage_samples_all_of_its_replies_from_the_server(recipe, stage, monkeypatch):
    """rlhf_lab's own sampler is called by the fake server alone, a row at a time."""
    with FakeVllm() as server:
        built = stage(recipe, "out", server)
        result = execute(built)
        assert result["status"] == "completed"
        prompts = 6 * 2  # minimum of the evaluation
        assert len(server.requests) >= prompts
        assert server.calls.count("lab_load") >= 1
    if recipe == "grpo":
        rows = [row for row in read_jsonl(built.directory / "metrics.jsonl") if "sampler_log_ratio" in row]
        assert len(rows) == 3, "logged in every iteration"
        assert all(row["sampler_log_ratio_max"] < 1e-4 and row["sampler_ess"] > 0.999 for row in rows)
        assert server.calls.count("lab_load") >= len(rows)


def test_a_stage_with_an_adapter_sends_the_base_once(stage):
    """Training, and evaluations of the start and of the result, with one sending of the base."""
    pytest.importorskip("peft", reason="pip install 'rlhf_lab[lora]'")
    with FakeVllm(adapters=ADAPTERS) as server:
        built = stage("grpo", "out", server, "model.lora.rank=2", "algorithm.lr=0.01", "rollout.adapters=swapped")
        execute(built)
        rows = [row for row in read_jsonl(built.directory / "metrics.jsonl") if "sampler_log_ratio" in row]
        assert all(row["sampler_log_ratio_max"] < 1e-4 for row in rows) and len(rows) == 3
        assert server.calls.count("lab_load") == 1
        swaps = server.calls.count("/v1/load_lora_adapter")
        requested = {request["model"] for request in server.requests}
        assert len(requested) == swaps + 1 and "policy" in requested, "rows of the base, and of each adapter"
        assert swaps >= 3 + 1, "before each update, and at the end"
        assert len(server.adapted) == 1


def test_a_stage_whose_server_died_resumes_exactly(stage):
    """The same command with the server started again, at another address, ends where an undisturbed run ends."""
    every_step = ("checkpoint.every_steps=1",)
    with FakeVllm() as server:
        full = stage("grpo", "whole", server, *every_step)
        execute(full)
        needed = len(server.requests)
    with FakeVllm(dies_after=needed // 2) as dying:
        cut = stage("grpo", "cut", dying, *every_step)
        with pytest.raises(ServerFailed, match="restart it and repeat the command"):
            execute(cut)
    assert read_json(cut.directory / "result.json")["status"] != "completed"
    with FakeVllm() as server:
        again = stage("grpo", "cut", server, *every_step)
        assert again.key == cut.key, "where a server is decides no result"
        result = execute(again)
    assert any("resumed at step" in note for note in result["notes"])
    expected, found = model_tensors(full.directory / "model"), model_tensors(again.directory / "model")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
