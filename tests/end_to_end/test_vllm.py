"""rollout=vllm with vLLM itself on a CPU: exact weights and adapters, seeds, ends of responses, GRPO and PPO.

Skipped if `python -m rlhf_lab vllm setup` has not created the environment. Servers run the code of
`rlhf_lab/sampling/vllm/plugin/lab_worker.py` and are started by `rlhf_lab/sampling/vllm/plugin/lab_serve.py`.
`RLHF_LAB_SHOW=1 pytest -s` prints what was measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import SMALL_WORLD, planned
from torch import nn
from transformers import AutoModelForCausalLM, Qwen2Config

from rlhf_lab.config import registry
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.models import lora
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.settings import LoRA
from rlhf_lab.sampling.local import LocalSampler, Samples
from rlhf_lab.sampling.settings import Local, Vllm
from rlhf_lab.sampling.vllm.environment import ENVIRONMENTS
from rlhf_lab.sampling.vllm.sampler import VllmSampler
from rlhf_lab.sampling.vllm.weights import Servers, servers_of
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.run import Run

MISSING = ENVIRONMENTS["cpu"].why_not_ready(ENVIRONMENTS["cpu"].default_dir())
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

VOCABULARY, EOS = 300, 3
EXACT = 1e-4
"""Nats by which a float32 log-probability of vLLM may differ from Hugging Face's."""


def show(text: str) -> None:
    if os.environ.get("RLHF_LAB_SHOW"):
        print(text, flush=True)


def qwen(vocabulary: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, is_tied: bool) -> nn.Module:
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=512,
        tie_word_embeddings=is_tied, bos_token_id=None, eos_token_id=EOS,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval()


def random_model(*, is_tied: bool, seed: int) -> nn.Module:
    """Small, with logits that differ by several nats. vLLM's attention on a CPU knows heads of 32, 64, … numbers."""
    model = qwen(VOCABULARY, 64, 96, 2, 2, 1, is_tied)
    change(model, seed)
    return model


@contextmanager
def serving(options: Vllm) -> Iterator[Servers]:
    """Servers of these settings, which end with the block."""
    servers = Servers(options)
    try:
        yield servers
    finally:
        if servers._server is not None:
            servers._server.close()


def change(model: nn.Module, seed: int) -> None:
    """Other weights at the path of the model's."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.15 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise if parameter.ndim == 2 else 1 + noise)


def change_adapter(policy: nn.Module, seed: int) -> None:
    """Another adapter at the path of the policy's."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))


def prompts() -> list[list[int]]:
    """Short ones, and one that fills several blocks of the cache."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, VOCABULARY, (length,), generator=generator).tolist() for length in (5, 9, 400, 12)]


@pytest.fixture(scope="module")
def servers():
    """Servers of all tests of this module; a model of another architecture gets another server."""
    settings = {"max_new_tokens": 16, "max_prompt_tokens": 400, "timeout_s": 1800, "adapters": "swapped"}
    with serving(Vllm(mode="spawn", **settings)) as kept:
        yield kept


def sampler_with(servers: Servers, stop_ids: Any = (EOS, *range(10, 40)), **settings: Any) -> VllmSampler:
    allowed = settings.pop("allowed", ())
    options = Vllm(mode="spawn", **{"max_new_tokens": 16, "max_prompt_tokens": 400, **settings})
    return VllmSampler(options, stop_ids, allowed=allowed, servers=servers)


def flat(samples: Samples) -> tuple[list[tuple[list[int], list[int]]], torch.Tensor]:
    """(prompt and response of each row, the log-probabilities that the samples carry)."""
    rows = [(p, row.token_ids) for p, group in zip(samples.prompts, samples.rows_BG, strict=True) for row in group]
    return rows, torch.tensor([logp for group in samples.rows_BG for row in group for logp in row.logps])


def difference(model: nn.Module, samples: Samples, temperature: float = 1.0) -> float:
    """Largest difference between what the samples carry and Hugging Face's log-probabilities, nats."""
    rows, sampled = flat(samples)
    expected = []
    with torch.no_grad():
        for prompt, response in rows:
            logits_TV = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
            logps_TV = (logits_TV / temperature).log_softmax(-1)
            expected += logps_TV.gather(1, torch.tensor(response)[:, None])[:, 0].tolist()
    return float((sampled - torch.tensor(expected)).abs().max())


def test_adapters_are_swapped_on_a_base_that_is_sent_once(servers):
    """First: the tests of the same model then run on a server that takes adapters."""
    pytest.importorskip("peft", reason="pip install 'rlhf_lab[lora]'")
    policy = lora.add_adapter(random_model(is_tied=False, seed=0), LoRA(rank=4, alpha=8.0, rslora=True), seed=0)
    base = lora.without_adapter(policy)
    sampler = sampler_with(servers)
    differences, seen = [], []
    for seed in (21, 22):
        change_adapter(policy, seed)
        # the same prompts again: what the cache holds of the long one belongs to the adapter before, or to the base
        samples = sampler.sample(policy, prompts(), 4, seed=1)
        seen.append(samples.responses_BG)
        differences.append(difference(policy, samples))
        differences.append(difference(base, sampler.sample(base, prompts(), 2, seed=1)))
    assert seen[0] != seen[1]
    assert len(servers.client(servers._server.url).adapters()) == 1, "those before are gone"
    assert len(servers.sent_s) == 3, "the base once, and two adapters"
    show(f"adapters: at most {max(differences):.1e} nats from Hugging Face; sent in {np.round(servers.sent_s, 3)} s")
    change(base, 13)
    differences.append(difference(policy, sampler.sample(policy, prompts(), 2, seed=1)))
    assert max(differences) < EXACT, differences


@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
def test_samples_are_of_the_weights_as_they_are(servers, is_tied):
    model = random_model(is_tied=is_tied, seed=0)
    sampler = sampler_with(servers)
    before = sampler.sample(model, prompts(), 4, seed=1)
    show(f"{'tied' if is_tied else 'untied'}: server ready in {servers._server.start_s:.0f} s")
    differences = [difference(model, before)]
    again = sampler.sample(model, prompts(), 4, seed=1)
    other = sampler.sample(model, prompts(), 4, seed=2)
    assert again.responses_BG == before.responses_BG != other.responses_BG
    assert len({tuple(response) for response in before.responses_BG[0]}) > 1, "rows of a group have seeds of their own"
    for seed in (11, 12):
        change(model, seed)
        # the same prompts again: what the cache holds of the long one belongs to the weights before
        differences.append(difference(model, sampler.sample(model, prompts(), 4, seed=1)))
        differences.append(difference(model, sampler.sample(model, prompts(), 4, seed=1, temperature=0.7), 0.7))
    show(f"largest difference from Hugging Face: {max(differences):.1e} nats; syncs {np.round(servers.sent_s, 3)} s")
    assert max(differences) < EXACT, differences


def test_a_server_sleeps_and_wakes_with_other_weights(servers, monkeypatch):
    """A real server takes the requests; on a CPU it frees no memory."""
    model = random_model(is_tied=False, seed=0)
    monkeypatch.setattr(servers, "settings", replace(servers.settings, mode="colocate"))
    sampler = sampler_with(servers)
    differences = []
    for seed in (21, 22):
        change(model, seed)
        differences.append(difference(model, sampler.sample(model, prompts(), 4, seed=1)))
        assert servers.client(servers._server.url).is_sleeping()
    assert max(differences) < EXACT, differences
    monkeypatch.undo()
    assert difference(model, sampler.sample(model, prompts(), 4, seed=1)) < EXACT


def test_replies_end_as_they_do_with_the_lab_s_sampler(servers):
    model = random_model(is_tied=True, seed=0)
    sampler = sampler_with(servers)
    local = LocalSampler(Local(max_new_tokens=16, max_prompt_tokens=400), sampler.stop_ids)
    samples = sampler.sample(model, prompts(), 16, seed=1)
    rows = [row for group in samples.rows_BG for row in group]
    assert {row.finished for row in rows} == {True, False}
    for row in rows:
        assert row.finished == (row.token_ids[-1] in sampler.stop_ids)
        assert row.finished or len(row.token_ids) == 16
        assert not any(token in sampler.stop_ids for token in row.token_ids[:-1])
    greedy = sampler.sample(model, prompts(), 1, seed=1, temperature=0.0)
    expected = local.sample(model, prompts(), 1, seed=1, temperature=0.0)
    assert greedy.responses_BG == expected.responses_BG
    for here, there in zip(greedy.logps_BG, expected.logps_BG, strict=True):
        assert here[0] == pytest.approx(there[0], abs=EXACT)


def test_truncation_and_allowed_tokens_mean_the_same(servers):
    """The log-probabilities are of the truncated distribution, as training computes them."""
    model = random_model(is_tied=True, seed=0)
    for settings in ({"top_k": 5}, {"top_p": 0.6}, {"top_k": 20, "top_p": 0.8}, {"allowed": (EOS, 50, 51, 52)}):
        sampler = sampler_with(servers, [EOS], temperature=0.8, **settings)
        rows, sampled_N = flat(sampler.sample(model, prompts(), 4, seed=1))
        batch = TokenBatch.from_rows(rows)
        with torch.no_grad():
            expected_N = token_logps(model, batch, temperature=0.8, truncation=sampler.truncation).logps_N
        assert (sampled_N - expected_N).abs().max() < EXACT, settings


def test_episodes_read_what_is_answered(servers):
    model = random_model(is_tied=True, seed=0)
    samples = sampler_with(servers).sample(
        model, prompts(), 4, seed=1, next_turn=lambda row, tokens: [7, 8, 9], max_turns=2
    )
    rows = [row for group in samples.rows_BG for row in group]
    assert any(not all(row.sampled) for row in rows)
    texts, sampled_N = flat(samples)
    with torch.no_grad():
        expected_N = token_logps(model, TokenBatch.from_rows(texts, masks=[row.sampled for row in rows])).logps_N
    assert (sampled_N - expected_N).abs().max() < EXACT


def test_tokens_per_second(servers):
    """Measure the numbers of docs/vllm.md: 32 prompts, 8 responses each."""
    model = random_model(is_tied=True, seed=0)
    sampler = sampler_with(servers, [EOS], max_new_tokens=64)
    requested = [prompt[:32] for prompt in prompts() * 8]
    sampler.sample(model, requested[:1], 1, seed=0)
    started = time.monotonic()
    samples = sampler.sample(model, requested, 8, seed=1)
    seconds = time.monotonic() - started
    tokens = sum(len(response) for responses in samples.responses_BG for response in responses)
    show(f"{tokens} tokens in {seconds:.1f} s: {tokens / seconds:.0f} tokens/s")
    assert tokens > 256


def test_what_a_sync_costs():
    """Measure the numbers of docs/vllm.md: 30M parameters, rank 16. Also CPU seconds, as cores are shared."""
    pytest.importorskip("peft", reason="pip install 'rlhf_lab[lora]'")
    model = qwen(8000, 512, 1408, 8, 8, 8, is_tied=True)
    show(f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f}M parameters")
    policy = lora.add_adapter(model, LoRA(rank=16), seed=0)
    options = Vllm(mode="spawn", max_new_tokens=32, max_prompt_tokens=64, timeout_s=1800, adapters="swapped")
    requested = [prompt[:32] for prompt in prompts()] * 4
    seconds: dict[str, list[float]] = {}
    with serving(options) as kept:
        kept.update(policy, 96)  # the base, and a server that is ready
        merging = replace(options, mode="server", urls=(kept._server.url,), adapters="merged")
        for name, servers in (("adapter", kept), ("merged", Servers(merging))):
            sampler = VllmSampler(options, [EOS], servers=servers)
            for seed in (31, 32, 33):
                change_adapter(policy, seed)
                servers.update(policy, 96)
            before = _processor_seconds(kept._server._process.pid)
            started = time.monotonic()
            samples = sampler.sample(policy, requested, 4, seed=1)
            elapsed = time.monotonic() - started
            used = _processor_seconds(kept._server._process.pid) - before
            tokens = sum(len(response) for responses in samples.responses_BG for response in responses)
            seconds[name] = servers.sent_s
            show(f"{name}: sent in {np.round(servers.sent_s[-3:], 2)} s")
            show(f"{name}: {tokens} tokens in {elapsed:.1f} s, of which {used:.1f} s of CPU")
            assert difference(policy, samples) < EXACT
    assert np.median(seconds["adapter"][-3:]) < np.median(seconds["merged"])


def _processor_seconds(group: int) -> float:
    """Return the CPU seconds of all processes of a process group."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rsplit(")", 1)[1].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="tensor parallel 2 needs two cores")
def test_a_model_divided_between_two_processes():
    """With an adapter, which vLLM divides as it divides the layers."""
    pytest.importorskip("peft", reason="pip install 'rlhf_lab[lora]'")
    policy = lora.add_adapter(random_model(is_tied=True, seed=0), LoRA(rank=4, alpha=8.0), seed=0)
    chosen = {"max_new_tokens": 8, "max_prompt_tokens": 400, "timeout_s": 1800, "adapters": "swapped"}
    options = Vllm(mode="spawn", tensor_parallel=2, **chosen)
    differences = []
    with serving(options) as two:
        sampler = VllmSampler(options, [EOS], servers=two)
        for seed in (21, 22):
            change_adapter(policy, seed)
            differences.append(difference(policy, sampler.sample(policy, prompts(), 2, seed=1)))
        change(lora.without_adapter(policy), 12)
        differences.append(difference(policy, sampler.sample(policy, prompts(), 2, seed=1)))
        show(f"two processes: ready in {two._server.start_s:.0f} s, at most {max(differences):.1e} nats off")
    assert max(differences) < EXACT, differences


SPAWN = ("rollout=vllm", "rollout.mode=spawn", "rollout.timeout_s=1800", "rollout.adapters=swapped")
WORLD = (*SMALL_WORLD, "model.hidden=64", "model.layers=1", "model.heads=2", "reward=length", "needs.reward=null")
SIZES = {
    # two iterations: the second samples with an adapter that the first has trained
    "ppo": (
        *("algorithm.prompts_per_iteration=32", "algorithm.batch_size=32", "algorithm.iterations=2"),
        *("algorithm.epochs=1", "algorithm.critic_warmup=0", "model.lora.rank=4", "algorithm.lr=0.01"),
    ),
    "grpo": (
        *("algorithm.prompts_per_iteration=32", "algorithm.group_size=8", "algorithm.batch_size=256"),
        *("algorithm.iterations=1", "algorithm.correction=token"),
    ),
}


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """(recipe, settings) → a stage on one policy; one server does for all of them."""
    outputs = tmp_path_factory.mktemp("stages")
    sft = planned("sft", *WORLD[:-2], "algorithm.epochs=1", f"outputs={outputs}")
    execute(sft)
    kept = []

    def make(recipe: str, *chosen: str):
        stage = planned(recipe, *WORLD, *SIZES[recipe], *chosen, f"needs.policy={sft.model}", f"outputs={outputs}")
        if isinstance(stage.config.rollout, Vllm):
            kept.append(servers_of(stage.config.rollout))
        return stage, Run(outputs / f"{recipe}_{len(chosen)}", stage.config, {"policy": sft.model})

    return make


@pytest.mark.parametrize("recipe", list(SIZES))
def test_an_iteration_has_the_statistics_of_the_lab_s_sampler(recipe, stages):
    """32 prompts from the same policy. Per prompt the two samplers' means differ by chance alone: the mean difference
    over prompts lies within 4 of its standard errors (1 in 16,000 by chance, for each of three)."""
    stage, _ = stages(recipe, *SPAWN)
    execute(stage)
    rows = [row for row in read_jsonl(stage.directory / "metrics.jsonl") if "sampler_log_ratio" in row]
    show(f"{recipe}: {rows}")
    assert len(rows) == stage.config.algorithm.iterations
    for row in rows:
        assert row["sampler_log_ratio_max"] < EXACT and row["sampler_ess"] > 0.9999
    assert rows[0]["step0_sampler_gap"] < EXACT
    assert abs(rows[0]["kl"]) < 1e-2, "before the first update the policy is its reference"

    groups = {}
    for name, chosen in {"vllm": SPAWN, "local": ()}.items():
        _, run = stages(recipe, *chosen, *(["algorithm.correction=none"] if name == "local" else []))
        run.directory.mkdir()
        algorithm = registry.build("algorithm", run.config.algorithm, run)
        groups[name], _ = algorithm.rollouts.draw(algorithm.model, 0)
    for quantity in ("sampled_tokens", "ended", "surprise"):
        means = {name: np.array([_mean(group, quantity) for group in of]) for name, of in groups.items()}
        gap = means["vllm"] - means["local"]
        error = gap.std(ddof=1) / np.sqrt(len(gap))
        show(f"{quantity}: vLLM {means['vllm'].mean():.3f}, local {means['local'].mean():.3f}, error {error:.3f}")
        assert abs(gap.mean()) <= 4 * error, quantity


def _mean(group: Any, quantity: str) -> float:
    if quantity == "surprise":
        return float(np.mean([-logp for episode in group.episodes for logp in episode.logps]))
    return float(np.mean([float(getattr(episode, quantity)) for episode in group.episodes]))
