"""The same numbers on a GPU: log-probabilities, samples, whole stages, resume. Skipped where there is none."""

from __future__ import annotations

import json
import math

import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, Stopped, model_tensors, planned, stop_at
from test_sampler import CONFIGS, EOS, LENGTHS, VOCABULARY, random_model

from rlhf_lab.algorithms.policy_gradient.grpo import GroupPolicyOptimisation
from rlhf_lab.algorithms.preference.dpo import OnePassDPO
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import exact_kl, token_logps
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local
from rlhf_lab.stages.execute import execute

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

TINY = (*SMALL_WORLD, *ONE_LAYER, "algorithm.batch_size=8", "algorithm.log_every_steps=1")
STEPS = {
    "sft": ("algorithm.epochs=1",),
    "reward_model": ("algorithm.epochs=1", "algorithm.members=2"),
    "dpo": ("algorithm.epochs=1",),
    "ppo": ("algorithm.iterations=3", "algorithm.prompts_per_iteration=8", "algorithm.critic_warmup=1"),
    "grpo": ("algorithm.iterations=3", "algorithm.prompts_per_iteration=4", "algorithm.group_size=4"),
    "dpo_iterative": ("algorithm.rounds=2", "algorithm.prompts_per_round=16", "needs.baseline=null"),
}
UPSTREAM = ("++stages.sft.algorithm.epochs=1", "++stages.reward_model.algorithm.epochs=1")


def rows(seed: int = 0) -> list[tuple[list[int], list[int]]]:
    generator = torch.Generator().manual_seed(seed)

    def ids(n: int) -> list[int]:
        return torch.randint(5, VOCABULARY, (n,), generator=generator).tolist()

    return [(ids(n), [*ids(2 * n), EOS]) for n in LENGTHS]


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_log_probabilities_and_kl_are_those_of_the_cpu(family):
    model, other = random_model(CONFIGS[family]), random_model(CONFIGS[family], 0.1)
    cpu, gpu = TokenBatch.from_rows(rows()), TokenBatch.from_rows(rows(), "cuda")
    with torch.no_grad():
        expected = token_logps(model, cpu).logps_N, exact_kl(model, other, cpu)
        model, other = model.cuda(), other.cuda()
        found = token_logps(model, gpu).logps_N, exact_kl(model, other, gpu)
    for there, here in zip(found, expected, strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("family", sorted(CONFIGS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_samples_carry_the_log_probabilities_of_the_trainer(family, dtype):
    model = random_model(CONFIGS[family]).cuda()
    prompts = [prompt for prompt, _ in rows()]
    sampler = LocalSampler(Local(max_new_tokens=16, max_prompt_tokens=32, dtype=dtype), [EOS])
    samples = sampler.sample(model, prompts, 4, 1)
    pairs = [(p, r) for p, responses in zip(prompts, samples.responses_BG, strict=True) for r in responses]
    with torch.no_grad():
        trainer = token_logps(model, TokenBatch.from_rows(pairs, "cuda")).logps_N.cpu()
    stated = torch.tensor([x for group in samples.logps_BG for row in group for x in row])
    assert (stated - trainer).abs().mean() < (1e-4 if dtype == "float32" else 0.1)


def test_greedy_replies_are_those_of_the_cpu():
    model = random_model(CONFIGS["llama"])
    sampler = LocalSampler(Local(max_new_tokens=16, max_prompt_tokens=32, dtype="float32"), [EOS])
    prompts = [prompt for prompt, _ in rows()]
    here = sampler.sample(model, prompts, 1, 0, temperature=0.0).responses_BG
    assert sampler.sample(model.cuda(), prompts, 1, 0, temperature=0.0).responses_BG == here


def losses(stage) -> list[float]:
    lines = (stage.directory / "metrics.jsonl").read_text().splitlines()
    return [row["loss"] for row in map(json.loads, lines) if "loss" in row]


@pytest.mark.parametrize("recipe", sorted(STEPS))
def test_a_stage_is_the_same_on_both_devices(tmp_path, recipe):
    found = {}
    for name, device, dtype in (("cpu", "cpu", "float32"), ("gpu", "cuda", "float32"), ("half", "cuda", "bfloat16")):
        where = (f"runtime.device={device}", f"runtime.dtype={dtype}", f"outputs={tmp_path / name}")
        stage = planned(recipe, *TINY, *STEPS[recipe], *where, *UPSTREAM)
        for upstream in stage.upstream():
            result = execute(upstream)
        assert result["status"] == "completed" and result["peak_gib"] > 0
        found[name] = losses(stage)
    if recipe in ("sft", "reward_model", "dpo"):  # the others train on samples, which rounding may change
        assert found["gpu"][0] == pytest.approx(found["cpu"][0], rel=1e-3, abs=1e-3)
        assert found["half"][0] == pytest.approx(found["cpu"][0], rel=0.1, abs=0.05)
    assert all(math.isfinite(loss) for run in found.values() for loss in run)


@pytest.mark.parametrize(("recipe", "algorithm"), [("dpo", OnePassDPO), ("grpo", GroupPolicyOptimisation)])
def test_an_interrupted_stage_goes_on_to_the_same_model(tmp_path, monkeypatch, recipe, algorithm):
    weights = []
    for name, at in (("whole", None), ("cut", 2)):
        more = ("runtime.device=cuda", "checkpoint.every_steps=1", f"outputs={tmp_path / name}")
        stage = planned(recipe, *TINY, *STEPS[recipe], *more, *UPSTREAM)
        for upstream in stage.upstream():
            if upstream is stage and at is not None:
                stop_at(monkeypatch, algorithm, at)
                with pytest.raises(Stopped):
                    execute(upstream)
                stop_at(monkeypatch, algorithm, None)
            execute(upstream)
        weights.append(model_tensors(stage.directory / "model"))
    for key, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][key], tensor, rtol=1e-3, atol=1e-4)
