"""algorithm.staleness: weights that sample an iteration's responses, their correction, and requirements of a resume."""

from __future__ import annotations

import copy
import threading
import time

import pytest
import torch
from fake_vllm import FakeVllm
from support import ONE_LAYER, SMALL_WORLD, assert_equal_models, execute_with_stops, planned

from rlhf_lab.algorithms.policy_gradient.grpo import GroupPolicyOptimisation
from rlhf_lab.algorithms.policy_gradient.settings import GRPO, PPO
from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.sampling.experience import Experience
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.run import Run

SIZE = (
    *("reward=length", "needs.reward=null", "algorithm.prompts_per_iteration=4", "algorithm.group_size=4"),
    *("algorithm.batch_size=8", "algorithm.iterations=4", "algorithm.lr=3e-3"),
)


ROWS_AT_ONCE = 3


def stage(policy, directory, *more: str):
    return planned("grpo", *SMALL_WORLD, *ONE_LAYER, *SIZE, f"needs.policy={policy}", f"outputs={directory}", *more)


def built(policy, directory, *more: str):
    config = stage(policy, directory, *more).config
    return registry.build("algorithm", config.algorithm, Run(directory, config, {"policy": str(policy)}))


@torch.no_grad()
def scale_weights(model, factor: float) -> None:
    for parameter in model.parameters():
        parameter *= factor


def logps_of(model, experience: Experience) -> torch.Tensor:
    with torch.no_grad():
        return token_logps(model, TokenBatch.from_rows(experience.rows)).logps_N


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_replies_are_drawn_by_weights_of_so_many_iterations_ago(staleness, policy, tmp_path):
    algorithm = built(policy, tmp_path, f"algorithm.staleness={staleness}", "algorithm.old_logps=recompute")
    weights = []
    for iteration in range(4):
        weights.append(copy.deepcopy(algorithm.model))
        groups, _ = algorithm.rollouts.draw(algorithm.model, iteration)
        episodes = [episode for group in groups for episode in group.episodes]
        experience = Experience.of(episodes)
        sampled_N = torch.tensor([logp for episode in episodes for logp in episode.logps])
        gaps = [float((logps_of(model, experience) - sampled_N).abs().max()) for model in weights]
        drawn_by = max(0, iteration - staleness)
        assert gaps[drawn_by] < 1e-5
        assert all(gap > 1e-3 for age, gap in enumerate(gaps) if age != drawn_by)
        scale_weights(algorithm.model, 1.05)
    assert not algorithm.rollouts.ahead, "nothing is drawn for iterations that will not be"


def test_old_weights_are_corrected_for(policy, tmp_path):
    """w = min(π_old/μ, 2), with π_old of the weights at the start of the iteration; at ratio 1 the loss is −w·A."""
    algorithm = built(policy, tmp_path, "algorithm.staleness=1", "algorithm.beta=0")
    algorithm.collect(0)
    before = copy.deepcopy(algorithm.model)
    assert torch.allclose(algorithm.experience.tokens["correction"], torch.tensor(1.0), atol=1e-4)
    scale_weights(algorithm.model, 1.05)
    (micro, *_) = algorithm.collect(algorithm.settings.steps_per_iteration).micro
    experience = algorithm.experience
    ratio_N = (logps_of(algorithm.model, experience) - logps_of(before, experience)).exp()
    assert torch.allclose(experience.tokens["correction"], ratio_N.clamp(max=2.0), rtol=1e-3)
    assert float((ratio_N - 1).abs().max()) > 0.1
    expected = -micro.tokens["correction"] * micro.tokens["advantage"] * micro.weight_N
    assert torch.allclose(algorithm.loss(micro).loss_N, expected, atol=1e-5)
    first, second = [row for row in read_jsonl(tmp_path / "metrics.jsonl") if "sampler_ess" in row]
    assert first["sampler_ess"] > 0.9999 > second["sampler_ess"]


def test_without_a_correction_clipping_compares_with_the_sampler(policy, tmp_path):
    """old_logps=sampler: π_old is the older policy's, also where an iteration has a single update."""
    chosen = ("algorithm.staleness=1", "algorithm.old_logps=sampler", "algorithm.batch_size=16", "algorithm.beta=0")
    algorithm = built(policy, tmp_path, *chosen, "algorithm.log_kl=false")
    assert algorithm.settings.steps_per_iteration == 1
    algorithm.collect(0)
    scale_weights(algorithm.model, 1.05)
    (micro, *_) = algorithm.collect(1).micro
    assert "correction" not in micro.tokens
    assert float(algorithm.loss(micro).metrics["approx_kl"].max()) > 1e-3


@pytest.mark.parametrize("stop", [3, 4])
def test_a_run_that_was_stopped_ends_where_a_whole_one_ends(stop, policy, tmp_path, monkeypatch):
    """Within an iteration of two updates, with the responses of the next one sampled and its first update not done."""
    chosen = ("algorithm.staleness=1", "checkpoint.every_steps=1", "algorithm.curriculum=edge")
    full = stage(policy, tmp_path / "whole", *chosen)
    execute(full)
    cut = stage(policy, tmp_path / "cut", *chosen)
    result = execute_with_stops(monkeypatch, GroupPolicyOptimisation, cut, stop)
    assert any("resumed at step" in note for note in result["notes"])
    assert_equal_models(full, cut)


def served(policy, directory, server: FakeVllm, *more: str):
    address = ("rollout=vllm", "rollout.mode=server", f"rollout.urls=[{server.url}]", "rollout.timeout_s=60")
    return stage(policy, directory, *address, *more)


@pytest.mark.slow
def test_a_server_samples_while_the_trainer_learns(policy, tmp_path, monkeypatch):
    """Responses are requested while a loss is computed, by weights that no update reaches before they arrive."""
    in_training = threading.Event()
    during: list[bool] = []
    policy_loss = GroupPolicyOptimisation.policy_loss

    def slow_loss(self, *arguments):
        in_training.set()
        time.sleep(0.05)
        out = policy_loss(self, *arguments)
        in_training.clear()
        return out

    monkeypatch.setattr(GroupPolicyOptimisation, "policy_loss", slow_loss)
    response = FakeVllm.response

    def noted_reply(self, body):
        during.append(in_training.is_set())
        return response(self, body)

    monkeypatch.setattr(FakeVllm, "response", noted_reply)
    with FakeVllm() as server:
        served_stage = served(policy, tmp_path, server, "algorithm.staleness=1")
        assert execute(served_stage)["status"] == "completed"
    assert any(during)
    rows = [row for row in read_jsonl(served_stage.directory / "metrics.jsonl") if "sampler_ess" in row]
    assert len(rows) == 4 and rows[0]["sampler_ess"] > 0.9999


def test_what_is_under_way_is_given_up_when_training_ends_with_an_error(policy, tmp_path, monkeypatch):
    def fail(self, *arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(GroupPolicyOptimisation, "accept_step", fail)
    response = FakeVllm.response

    def slow_reply(self, body):
        time.sleep(0.2 if len(self.requests) > 16 else 0)  # the rows of iteration 1, one at a time
        return response(self, body)

    monkeypatch.setattr(FakeVllm, "response", slow_reply)
    with FakeVllm() as server:
        at_once = f"rollout.batch_rows={ROWS_AT_ONCE}"
        served_stage = served(policy, tmp_path, server, "algorithm.staleness=1", at_once)
        with pytest.raises(ZeroDivisionError):
            execute(served_stage)
        # of the 16 rows of iteration 1, only those already in flight are requested
        assert len(server.requests) <= 16 + ROWS_AT_ONCE


@pytest.mark.parametrize("again", ["algorithm.advantage=remax", "algorithm.dynamic_sampling=1"])
def test_what_samples_twice_draws_ahead_when_it_is_done(again, policy, tmp_path):
    """Otherwise the second sampling would wait for the rows sampled ahead. The weights are the same."""
    algorithm = built(policy, tmp_path, "algorithm.staleness=1", again)
    calls = []
    submit, collect = algorithm.rollouts.collector.submit, algorithm.rollouts.collector.collect
    algorithm.rollouts.collector.submit = lambda *a, **k: calls.append("ahead") or submit(*a, **k)
    algorithm.rollouts.collector.collect = lambda *a, **k: calls.append("now") or collect(*a, **k)
    algorithm.rollouts.draw(algorithm.model, 0)
    assert calls[0] == calls[-1] == "ahead" and calls.count("ahead") == 2


def test_the_kl_is_of_the_policy_that_drew(policy, tmp_path):
    """E_μ[log μ/π_ref] ≥ 0 where E_μ[log π_old/π_ref] is low by KL(μ ‖ π_old)."""
    algorithm = built(policy, tmp_path, "algorithm.staleness=1")
    algorithm.collect(0)
    scale_weights(algorithm.model, 1.2)
    algorithm.collect(algorithm.settings.steps_per_iteration)
    second = [row for row in read_jsonl(tmp_path / "metrics.jsonl") if "kl" in row][1]
    assert second["kl"] == pytest.approx(0, abs=1e-3), "the weights of the start drew these, too"


def test_settings_of_staleness():
    with pytest.raises(ConfigError, match="staleness=60 samples all responses with the initial weights"):
        planned("grpo", "algorithm.staleness=60", "algorithm.iterations=60")
    assert planned("grpo", "algorithm.staleness=0", "algorithm.correction=auto").key == planned("grpo").key
    assert planned("grpo", "algorithm.staleness=1", "algorithm.correction=token").config.algorithm.staleness == 1
    assert GRPO(staleness=1).correction_used == PPO(staleness=1).correction_used == "token"
    assert GRPO(staleness=1, old_logps="sampler").correction_used == GRPO().correction_used == "none"
