"""The sampler draws from the model's own distribution and reports its log-probabilities."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.sampling import linear
from rlhf_lab.sampling.cache import StepCost
from rlhf_lab.sampling.decoder import Decoder
from rlhf_lab.sampling.decoding import BatchCapacity, arrange
from rlhf_lab.sampling.drawing import draw
from rlhf_lab.sampling.local import LocalSampler, Samples
from rlhf_lab.sampling.settings import Local
from rlhf_lab.sampling.turns import OneTurn

VOCABULARY, EOS = 300, 3
LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "eos_token_id": EOS,
    "bos_token_id": None,
    "pad_token_id": 0,
}
CONFIGS: dict[str, Any] = {
    "gpt2": GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=128, eos_token_id=EOS, bos_token_id=None
    ),
    "llama": LlamaConfig(**LLAMA),
    "qwen2": Qwen2Config(**LLAMA),
    "qwen3": Qwen3Config(**LLAMA, head_dim=16),
    "mistral": MistralConfig(**LLAMA),
    "gpt_neox": GPTNeoXConfig(**{k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}),  # Decoder knows it not
}
LENGTHS = (5, 9, 3, 12, 7)


def random_model(config: Any, scale: float = 0.15) -> nn.Module:
    """Weights large enough that logits differ by several nats; biases and norms are not at their start either."""
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * scale
            parameter.copy_(noise if parameter.ndim == 2 else parameter + noise)
    return model


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]


def eager_eos(model: nn.Module, factor: float = 1.5) -> nn.Module:
    """Make EOS likely, so that rows end at different times."""
    head: Any = model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone())
    bias = torch.zeros(VOCABULARY)
    bias[EOS] = factor
    if head.bias is not None:
        bias += head.bias.detach()
    head.bias = nn.Parameter(bias)
    return model


def sample(model: nn.Module, group: int = 3, **settings: Any) -> Samples:
    options = Local(**{"max_new_tokens": 40, "max_prompt_tokens": 64, **settings})
    return LocalSampler(options, [EOS]).sample(model, prompts(), group, seed=1)


def flat(samples: Samples) -> tuple[list[tuple[list[int], list[int]]], torch.Tensor]:
    rows = [(p, r) for p, responses in zip(samples.prompts, samples.responses_BG, strict=True) for r in responses]
    return rows, torch.tensor([x for group in samples.logps_BG for response in group for x in response])


def largest_gap(model: nn.Module, samples: Samples, temperature: float = 1.0) -> float:
    """Largest difference of the samples' log-probabilities from those of a teacher-forced pass, nats."""
    rows, logps_N = flat(samples)
    with torch.no_grad():
        expected = token_logps(model, TokenBatch.from_rows(rows), temperature=temperature)
    return float((logps_N - expected.logps_N).abs().max())


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logps_equal_the_teacher_forced_forward(family: str, temperature: float) -> None:
    model = random_model(CONFIGS[family])
    assert largest_gap(model, sample(model, temperature=temperature), temperature) < 1e-5


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox"])
def test_logps_hold_when_rows_finish_at_different_times(family: str) -> None:
    model = eager_eos(random_model(CONFIGS[family]), 4.0)
    samples = sample(model, group=8)
    lengths = [len(r) for responses in samples.responses_BG for r in responses]
    assert min(lengths) < 10 < max(lengths)  # rows were dropped during sampling
    assert all(row.finished == (row.token_ids[-1] == EOS) for rows in samples.rows_BG for row in rows)
    assert largest_gap(model, samples) < 1e-5


@pytest.mark.parametrize("kind", ["qwen3_5_text", "llama4_text"])
def test_models_with_other_caches_and_backbones_are_sampled(kind: str) -> None:
    """Qwen 3.5 has layers of linear attention. Llama 4 has no backbone under the name that its class states."""
    changes = {
        "qwen3_5_text": {"num_hidden_layers": 4, "head_dim": 8}
        | {f"linear_num_{part}_heads": 2 for part in ("key", "value")}
        | {f"linear_{part}_head_dim": 8 for part in ("key", "value")},
        "llama4_text": {"num_local_experts": 2, "intermediate_size_mlp": 48, "head_dim": 8},
    }
    model = eager_eos(random_model(CONFIG_MAPPING[kind](**{**LLAMA, **changes[kind]})), 4.0)
    samples = sample(model, group=4)
    assert len({len(response) for _, response in flat(samples)[0]}) > 4  # rows were dropped during sampling
    assert largest_gap(model, samples) < 1e-3


def test_a_model_without_a_cache_is_refused() -> None:
    model = random_model(CONFIG_MAPPING["mamba"](vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(ConfigError, match=r"MambaForCausalLM.*past_key_values"):
        sample(model)


@pytest.mark.parametrize(("eagerness", "finished"), [(100.0, True), (-100.0, False)])
def test_an_eos_in_the_last_place_allowed_ends_the_reply(eagerness: float, finished: bool) -> None:
    """With space for one token, EOS is a complete response; any other token is a truncated response."""
    model = eager_eos(random_model(CONFIGS["llama"]), eagerness)
    samples = sample(model, max_new_tokens=1)
    assert all(len(response) == 1 for responses in samples.responses_BG for response in responses)
    assert {flag for flags in samples.finished_BG for flag in flags} == {finished}


def test_one_prompt_alone_gives_what_it_gives_among_others() -> None:
    model = random_model(CONFIGS["llama"])
    sampler = LocalSampler(Local(max_new_tokens=20, max_prompt_tokens=64), [EOS])
    alone, among = (sampler.sample(model, chosen, 4, seed=1) for chosen in (prompts()[:1], prompts()))
    assert alone.responses_BG[0] == among.responses_BG[0]


@pytest.mark.parametrize("stop", [(), ("never",)], ids=["one_turn", "with_stop_texts"])
def test_a_prompt_with_a_seed_of_its_own_gives_what_it_gives_alone(stop: tuple[str, ...]) -> None:
    model = eager_eos(random_model(CONFIGS["llama"]), 4.0)
    settings = Local(max_new_tokens=20, max_prompt_tokens=64, batch_rows=4, stop=stop)
    sampler = LocalSampler(settings, [EOS], decode=lambda tokens: "")
    seeds = [11, 7, 11, 2**62, 0]
    together = sampler.sample(model, prompts(), 2, seeds)
    for index, (prompt, seed) in enumerate(zip(prompts(), seeds, strict=True)):
        alone = sampler.sample(model, [prompt], 2, seed)
        assert alone.responses_BG[0] == together.responses_BG[index]


@pytest.mark.parametrize("bfloat16_from", [1, 2**40])
def test_bf16_is_close_to_float32(monkeypatch: pytest.MonkeyPatch, bfloat16_from: int) -> None:
    monkeypatch.setattr(linear, "BFLOAT16_FROM", bfloat16_from)
    model = random_model(CONFIGS["llama"])
    rows, logps_N = flat(sample(model, dtype="bfloat16"))
    with torch.no_grad():
        expected = token_logps(model, TokenBatch.from_rows(rows)).logps_N
    assert (logps_N - expected).abs().mean() < 0.05


@pytest.mark.parametrize("family", CONFIGS)
def test_greedy_equals_generate(family: str) -> None:
    model: Any = random_model(CONFIGS[family])
    kind = Decoder.of(model, torch.float32, 100)
    assert (kind is None) == (family == "gpt_neox")
    responses = sample(model, group=1, temperature=0.0).responses_BG
    for prompt, (response,) in zip(prompts(), responses, strict=True):
        generated = model.generate(
            torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=EOS, pad_token_id=0
        )
        assert generated[0, len(prompt) :].tolist() == response


@pytest.mark.parametrize("stop", [(), ("never",)], ids=["one_turn", "with_stop_texts"])
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_an_opening_counts_as_tokens_of_its_response(family: str, stop: tuple[str, ...]) -> None:
    """Prompts of 2 tokens, openings of 0, 3, 7, 8 and 14, at most 8 tokens of a response: 16 positions are enough."""
    changes = {"n_positions": 16} if family == "gpt2" else {"max_position_embeddings": 16}
    config = type(CONFIGS[family])(**{**CONFIGS[family].to_dict(), **changes})
    model = random_model(config)
    opened = [0, 3, 7, 8, 14]
    contexts = [list(range(4, 6 + length)) for length in opened]
    settings = Local(max_new_tokens=8, batch_rows=4, stop=stop)
    sampler = LocalSampler(settings, [-1], decode=lambda tokens: "")
    samples = sampler.sample(model, contexts, 2, seed=0, opened=opened)
    assert [[len(row) for row in rows] for rows in samples.responses_BG] == [[n] * 2 for n in (8, 5, 1, 1, 1)]
    rows, logps_N = flat(samples)
    assert torch.allclose(token_logps(model, TokenBatch.from_rows(rows)).logps_N[: len(logps_N)], logps_N, atol=1e-4)


def test_sliding_window_uses_the_models_own_forward() -> None:
    model = random_model(MistralConfig(**LLAMA, sliding_window=8))
    assert Decoder.of(model, torch.float32, 8) is not None
    assert Decoder.of(model, torch.float32, 9) is None


def test_a_sample_does_not_depend_on_its_batch() -> None:
    model = eager_eos(random_model(CONFIGS["llama"]))
    together, _ = flat(sample(model, batch_rows=512))
    separate, _ = flat(sample(model, batch_rows=3))
    assert together == separate


def test_same_seed_same_replies_and_another_seed_others() -> None:
    model = random_model(CONFIGS["llama"])
    settings = Local(max_new_tokens=8, max_prompt_tokens=64)
    first, again, other = (LocalSampler(settings, [EOS]).sample(model, prompts(), 2, seed) for seed in (1, 1, 2))
    assert first.responses_BG == again.responses_BG != other.responses_BG


def test_no_prompts() -> None:
    empty = LocalSampler(Local(max_new_tokens=4, max_prompt_tokens=4), [EOS]).sample(
        random_model(CONFIGS["llama"]), [], 2, 0
    )
    assert empty.responses_BG == []


@pytest.mark.parametrize("vocabulary", [40, 2048, 2049, 5003])
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_frequencies_match_the_softmax(vocabulary: int, temperature: float) -> None:
    """Tokens in 40 bins of about equal probability, 40,000 draws."""
    generator = torch.Generator().manual_seed(3)
    logits_V = torch.randn(vocabulary, generator=generator) * 2
    p_V = (logits_V.double() / temperature).softmax(0)
    count_V = torch.zeros(vocabulary, dtype=torch.long)
    for _ in range(20):
        noise_R = torch.rand(2000, generator=generator)
        token_R, logp_R = draw(logits_V.expand(2000, -1), noise_R, temperature)
        assert (logp_R - p_V.log()[token_R]).abs().max() < 1e-5
        count_V += torch.bincount(token_R, minlength=vocabulary)
    bin_V = (p_V.cumsum(0) * 40).long().clamp(max=39)
    expected = torch.zeros(40, dtype=torch.float64).index_add(0, bin_V, p_V) * 40_000
    observed = torch.zeros(40, dtype=torch.long).index_add(0, bin_V, count_V)
    full = expected > 0  # one token can fill several bins
    assert chisquare(observed[full], expected[full]).pvalue > 1e-3


@pytest.mark.parametrize("vocabulary", [40, 5003])
def test_impossible_tokens_are_never_drawn(vocabulary: int) -> None:
    """Also at the ends of the noise's range, where rounding would step outside."""
    logits_RV = torch.full((1026, vocabulary), -torch.inf)
    possible = torch.tensor([7, 8, vocabulary - 3])
    logits_RV[:, possible] = torch.tensor([0.0, -1.0, 0.5])
    noise_R = torch.cat([torch.linspace(0, 1, 1024), torch.tensor([1 - 2**-24, 2**-30])])
    token_R, logp_R = draw(logits_RV, noise_R, 1.0)
    assert set(token_R.tolist()) == set(possible.tolist())
    # Σ e^logit = 1 + e^−1 + e^.5 = 3.016601, whose logarithm is 1.104131
    by_token = {7: 0.0 - 1.104131, 8: -1.0 - 1.104131, vocabulary - 3: 0.5 - 1.104131}
    assert logp_R.tolist() == pytest.approx([by_token[token] for token in token_R.tolist()], abs=1e-5)


ROOM = BatchCapacity(rows=64, slots=1, width=1, tokens=128)


def test_lines_weigh_copies_of_the_prompt_against_idle_rows() -> None:
    live_lines = [[0, 2, 3], [], [9]]
    kept, _ = arrange(live_lines, [], 4, ROOM, StepCost(step=0, row=100, prompt=1))
    assert kept == [[0], [2], [3], [9]]
    # a long prompt: two lines of four rows, short of live rows, cost 2·(4 + 1000) instead of 4·(1 + 1000)
    kept, _ = arrange(live_lines, [], 4, ROOM, StepCost(step=0, row=1, prompt=1000))
    assert kept == [[0, 2, 3, 3], [9, 9, 9, 9]]


def test_rows_join_in_their_order_as_long_as_there_is_room() -> None:
    """Rows 4 to 11 wait, four of a prompt. Two live rows leave six positions of eight, in tokens as in rows."""
    capacity = BatchCapacity.of_groups(8, group=4, slots=10, width=5)
    assert capacity.tokens == 8 * 10 + 2 * 5
    cheap_prompts = StepCost(step=0, row=100, prompt=1)
    kept, joined_rows = arrange([[0], [2]], range(4, 12), 4, capacity, cheap_prompts)
    # row groups of one row: 6·(10 + 5) = 90 positions hold four new rows next to the two
    assert kept == [[0], [2]] and joined_rows == [[4], [5], [6], [7]]
    # one row is alive and a prompt is dear: row groups of four, of which two fit; that of the live row repeats it
    kept, joined_rows = arrange([[2]], range(4, 12), 4, capacity, StepCost(step=0, row=1, prompt=1000))
    assert kept == [[2, 2, 2, 2]] and joined_rows == [[4, 5, 6, 7]]


def test_lines_are_not_broken_up_where_there_is_no_room_for_copies_of_the_prompt() -> None:
    """Row groups of one row, 10 + 100 tokens: three would fit, so four rows in two row groups stay as they are."""
    capacity = BatchCapacity.of_groups(16, group=8, slots=10, width=100)
    assert capacity.tokens == 360 and capacity.row_groups(1) == 3
    kept, _ = arrange([[0, 3], [9, 12]], [], 8, capacity, StepCost(step=0, row=1000, prompt=1))
    assert kept == [[0, 3], [9, 12]]


def test_what_a_step_costs_by_itself_fills_the_batch() -> None:
    """Row groups of one row, 50 tokens: four fit into 240. Row groups of two, 60 tokens: four with all five rows."""
    capacity = BatchCapacity(rows=8, slots=10, width=40, tokens=240)
    live_lines, waiting = [[0], [2], [4]], [8, 9]
    # 4·(10 + 1) for four rows against 4·(2·10 + 1) for five
    kept, joined_rows = arrange(live_lines, waiting, 2, capacity, StepCost(step=0, row=10, prompt=1))
    assert kept == live_lines and joined_rows == [[8]]
    # with 1,000 more: 1,044 for four rows against 1,084 for five
    kept, joined_rows = arrange(live_lines, waiting, 2, capacity, StepCost(step=1000, row=10, prompt=1))
    assert kept == [[0, 0], [2, 2], [4, 4]] and joined_rows == [[8, 9]]


def rows_in_steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(rows, slots of the cache) of every step that is decoded from now on."""
    seen: list[tuple[int, int]] = []
    step = Decoder.step

    def watched(self: Decoder, token_R: torch.Tensor, position_R: torch.Tensor, cache: Any) -> torch.Tensor:
        hidden = step(self, token_R, position_R, cache)
        seen.append((len(token_R), cache.used))
        return hidden

    monkeypatch.setattr(Decoder, "step", watched)
    return seen


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_a_batch_that_is_refilled_draws_the_same_rows(family: str, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = eager_eos(random_model(CONFIGS[family]), 4.0)
    at_once, logps_N = flat(sample(model, group))
    seen = rows_in_steps(monkeypatch)
    refilled, refilled_logps_N = flat(sample(model, group, batch_rows=4))
    assert refilled == at_once
    assert (refilled_logps_N - logps_N).abs().max() < 1e-5
    rows = [count for count, _ in seen]
    assert max(rows) <= 4
    joined = [after - before for before, after in pairwise(rows)]
    assert any(0 < more < 4 for more in joined)  # rows joined others that went on


def test_rows_that_end_one_by_one_keep_the_cache_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses of up to 12 tokens; 40 of them through a batch of 4, which never has more than 1.25 times 12 slots."""
    model = eager_eos(random_model(CONFIGS["llama"]), 3.0)
    seen = rows_in_steps(monkeypatch)
    samples = sample(model, 8, batch_rows=4, max_new_tokens=12)
    assert max(used for _, used in seen) <= 15 + 1
    assert {len(response) for responses in samples.responses_BG for response in responses} >= {1, 12}


def test_finished_rows_may_be_looked_for_every_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: finished rows continue for a while, which changes no response, not even at the last position."""
    model = eager_eos(random_model(CONFIGS["gpt2"]), 4.0)
    settings: dict[str, Any] = {"max_new_tokens": 128 - max(LENGTHS), "batch_rows": 8}  # all of the model's positions
    each_token, logps_N = flat(sample(model, **settings))
    own_init = OneTurn.__init__

    def seldom(self: OneTurn, *args: Any) -> None:
        own_init(self, *args)
        self.steps_per_check = 8

    monkeypatch.setattr(OneTurn, "__init__", seldom)
    seldom_looked, seldom_logps_N = flat(sample(model, **settings))
    assert seldom_looked == each_token
    assert (seldom_logps_N - logps_N).abs().max() < 1e-5


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_dropping_rows_keeps_the_others_exact(family: str) -> None:
    """The same hidden states whether or not other rows, and their prompts, were dropped and groups split."""
    model = random_model(CONFIGS[family])
    decoder = Decoder.of(model, torch.float32, 64)
    assert decoder is not None
    tokens_TR = torch.randint(5, VOCABULARY, (25, 20), generator=torch.Generator().manual_seed(5))
    position_R = torch.tensor(LENGTHS).repeat_interleave(4)
    with torch.no_grad():
        _, full = decoder.start(prompts(), 4, torch.device("cpu"))
        _, part = decoder.start(prompts(), 4, torch.device("cpu"))
        kept = torch.arange(20)
        for t, token_R in enumerate(tokens_TR):
            if t == 5:  # groups of 4 become lines of 2: prompts 0, 0, 2, 4
                lines = torch.tensor([[0, 1], [3, 3], [9, 10], [16, 19]])
                part.keep(lines)
                kept = lines.flatten()
            if t == 18:  # and then single rows
                lines = torch.tensor([[0], [5], [7]])
                part.keep(lines)
                kept = kept[lines.flatten()]
            expected = decoder.step(token_R, position_R + t, full)[kept]
            found = decoder.step(token_R[kept], (position_R + t)[kept], part)
            assert (found - expected).abs().max() < 1e-5
