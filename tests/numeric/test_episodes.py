"""Episodes of several turns: what the model saw, what it is trained on, and what depends on what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_sampler import CONFIGS, EOS, eager_eos, prompts, random_model
from torch import nn

from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.graph import GraphReward
from rlhf_lab.rewards.rules.environment import EnvironmentReward
from rlhf_lab.rewards.rules.settings import EnvironmentTurns
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.sampling.experience import Experience, early_scores
from rlhf_lab.sampling.local import LocalSampler, Noise, Samples
from rlhf_lab.sampling.settings import Local
from rlhf_lab.sampling.turns import RowTokens, SeveralTurns

ANSWER = [7, 11, 13]
"""Answer of the environment after every turn."""


def talk(
    model: nn.Module,
    answers: Any = lambda row, tokens: ANSWER,
    *,
    group: int = 3,
    turns: int = 3,
    contexts: list[list[int]] | None = None,
    **settings: Any,
) -> Samples:
    """Episodes of up to `turns` turns; `answers` is called after each turn but the last."""
    spoken: dict[int, int] = {}

    def next_turn(row: int, tokens: list[int]) -> list[int]:
        spoken[row] = spoken.get(row, 0) + 1
        return answers(row, tokens) if spoken[row] < turns else []

    options = Local(**{"max_new_tokens": 12, "max_prompt_tokens": 64, **settings})
    sampler = LocalSampler(options, [EOS])
    return sampler.sample(model, contexts or prompts(), group, seed=1, next_turn=next_turn, max_turns=turns)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return eager_eos(random_model(CONFIGS["llama"]))


def test_one_turn_is_sampled_as_a_reply_is(model):
    settings = Local(max_new_tokens=12, max_prompt_tokens=64)
    responses = LocalSampler(settings, [EOS]).sample(model, prompts(), 3, seed=1)
    episodes = talk(model, turns=1)
    assert episodes.responses_BG == responses.responses_BG and episodes.finished_BG == responses.finished_BG
    assert episodes.logps_BG == responses.logps_BG


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox"])
def test_logps_of_sampled_tokens_equal_the_teacher_forced_forward(family):
    """Prompt and segments laid end to end are what the model saw: the answers included, nothing rendered again."""
    policy = eager_eos(random_model(CONFIGS[family]), factor=3.0)
    samples = talk(policy)
    rows, masks, sampled = [], [], []
    for prompt, group in zip(samples.prompts, samples.rows_BG, strict=True):
        for row in group:
            rows.append((prompt, row.token_ids))
            masks.append(row.sampled)
            sampled += row.logps
    assert any(not all(mask) for mask in masks), "no row had a second turn"
    with torch.no_grad():
        expected = token_logps(policy, TokenBatch.from_rows(rows, masks=masks)).logps_N
    assert len(expected) == len(sampled) == sum(map(sum, masks))
    assert (torch.tensor(sampled) - expected).abs().max() < 1e-5


def test_answers_follow_every_turn_that_ended(model):
    rows_BG = talk(model).rows_BG
    assert any(sum(row.sampled) < len(row.token_ids) for group in rows_BG for row in group)
    for group in rows_BG:
        for row in group:
            forced = [token for token, sampled in zip(row.token_ids, row.sampled, strict=True) if not sampled]
            ends = sum(token == EOS for token, s in zip(row.token_ids, row.sampled, strict=True) if s)
            turns_followed = len(forced) // len(ANSWER)
            assert forced == ANSWER * turns_followed
            assert turns_followed == min(ends, 2)


def test_a_sample_depends_neither_on_its_neighbours_nor_on_how_long_others_speak(model):
    """Noise is keyed by (episode, turn): the first prompt's episodes are the same alone and next to longer ones."""
    alone = talk(model, contexts=prompts()[:1])
    among = talk(model)
    beside_long = talk(model, lambda row, tokens: ANSWER if row < 3 else ANSWER * 4, max_episode_tokens=200)
    for samples in (among, beside_long):
        assert samples.responses_BG[0] == alone.responses_BG[0]
        for here, there in zip(samples.logps_BG[0], alone.logps_BG[0], strict=True):
            assert here == pytest.approx(there, abs=1e-5)


def scripted(
    tokens: list[int], answer: list[int], *, slots: int, max_tokens_left: int
) -> tuple[RowTokens, list[float]]:
    """A row that samples these tokens until EOS, by noise of .1·turn + .01·position; and the noise that it read."""
    turns = SeveralTurns(
        [0],
        lambda turn: np.array([[0.1 * turn + 0.01 * position for position in range(slots)]], dtype=np.float32),
        [EOS],
        torch.device("cpu"),
        next_turn=lambda row, spoken: answer,
        ends_text=lambda spoken: False,
        slots=slots,
        max_tokens_left=max_tokens_left,
        opened=[0],
    )
    turns.join([0])
    left, noise, live = list(tokens), [], True
    while live:
        is_read = bool(turns.forced[0])  # tokens of the environment are not sampled
        noise += [] if is_read else turns.noise().tolist()
        token = 99 if is_read else left.pop(0)
        live = bool(turns.take(torch.tensor([token]), torch.tensor([-1.0]))[1])
    return turns.rows()[0], noise


def test_each_turn_draws_by_noise_of_its_own_from_the_first_place_on():
    """Turns of 2, 1 and 2 tokens: positions 0 1, 0, 0 1 of turns 0, 1 and 2."""
    row, noise = scripted([5, EOS, EOS, 6, 8], [7, 7], slots=2, max_tokens_left=99)
    assert row.token_ids == [5, EOS, 7, 7, EOS, 7, 7, 6, 8] and not row.finished
    assert noise == pytest.approx([0.0, 0.01, 0.1, 0.2, 0.21])


def test_noise_of_a_turn_is_a_matrix_of_its_own():
    noise = Noise([1], 4, 6)
    first, second, third = (noise(turn) for turn in range(3))
    assert torch.equal(first, torch.rand(4, 6, generator=torch.Generator().manual_seed(1)))
    assert not (first == second).any() and not (second == third).any() and not (first == third).any()
    of_each = Noise([1, 2], 2, 6)  # a seed for each of two prompts: none has a row in common with another, in no turn
    rows = torch.cat([of_each(0), of_each(1)])
    assert len(set(map(tuple, rows.tolist()))) == 8


@pytest.mark.parametrize(
    ("max_tokens_left", "expected"),
    [
        (4, [5, EOS]),  # the answer of 2 tokens leaves no space for a token of the next turn
        (5, [5, EOS, 7, 7, 6]),  # space for exactly one
        (6, [5, EOS, 7, 7, 6, 6]),
        (2, [5, EOS]),
        (1, [5]),
    ],
)
def test_an_episode_has_as_many_tokens_as_it_may_and_no_more(max_tokens_left, expected):
    row, _ = scripted([5, EOS, 6, 6, 6, 6, 6, 6], [7, 7], slots=8, max_tokens_left=max_tokens_left)
    assert row.token_ids == expected
    assert row.sampled == [token != 7 for token in expected]
    assert len(row.logps) == sum(row.sampled)
    assert row.finished == (expected[-1] == EOS)


def test_an_episode_ends_at_its_longest_length(model):
    samples = talk(model, turns=9, max_episode_tokens=20)
    rows = [row for group in samples.rows_BG for row in group]
    assert max(len(row.token_ids) for row in rows) == 20, "the model has no positions for more"
    assert any(len(row.token_ids) == 20 and not row.finished for row in rows), "no turn was cut there"


def test_a_turn_that_is_cut_ends_its_episode(model):
    samples = talk(model, max_new_tokens=2)
    cut = [row for group in samples.rows_BG for row in group if not row.finished]
    assert cut and all(row.token_ids[-1] != EOS for row in cut)


def episode(*segments: Segment) -> Episode:
    return Episode(Task("p"), "p", "r", [1, 2], segments)


TWO_TURNS = episode(
    Segment([5, EOS], sampled=True, logps=[-0.5, -0.1], reward=0.25),
    Segment([7, 7, 7], sampled=False),
    Segment([6, EOS], sampled=True, logps=[-0.7, -0.2], reward=1.0),
)


def test_tokens_of_the_environment_get_no_gradient(model):
    """The loss of an episode does not move when the answer's own predictions do: only sampled tokens are targets."""
    experience = Experience.of([TWO_TURNS])
    assert experience.masks == [[True, True, False, False, False, True, True]]
    assert experience.sampled_lengths == [4] and experience.lengths == [9]
    batch = experience.micro([0], torch.ones(4), "cpu").batch
    row_N, column_N = batch.targets()
    assert column_N.tolist() == [2, 3, 7, 8], "prompt 0-1, first turn 2-3, answer 4-6, second turn 7-8"
    policy: Any = model
    hidden = policy.base_model(input_ids=batch.tokens_BT).last_hidden_state.detach()
    logits = policy.get_output_embeddings()(hidden).detach().requires_grad_()
    loss = -logits.log_softmax(-1)[row_N, column_N - 1, batch.tokens_BT[row_N, column_N]].sum()
    loss.backward()
    moved = logits.grad.abs().sum(-1)[0] > 0
    assert moved.nonzero().flatten().tolist() == [1, 2, 6, 7]
    assert torch.allclose(token_logps(model, batch).logps_N.sum(), -loss, atol=1e-4)


def test_scores_of_early_turns_lie_on_their_last_tokens():
    """The first of two turns of two tokens earned ¼; what PPO makes of it is in test_turn_credit.py."""
    assert early_scores([TWO_TURNS], [[0.25]]).tolist() == [0, 0.25, 0, 0]
    assert early_scores([TWO_TURNS], [[]]).tolist() == [0, 0, 0, 0]  # scored as a whole


def test_experience_comes_back_from_a_checkpoint():
    experience = Experience.of([TWO_TURNS])
    again = Experience.from_state(experience.state_dict())
    assert again.masks == experience.masks and again.rows == experience.rows


def test_stop_texts_end_a_turn(model):
    """Token n reads as the letter number n; "stop" texts are looked for in what is read."""
    letters = {n: chr(ord("a") + n % 26) for n in range(400)}
    decode = lambda tokens: "".join(letters[token] for token in tokens)  # noqa: E731
    settings = Local(max_new_tokens=30, max_prompt_tokens=64)
    free = LocalSampler(settings, [EOS]).sample(model, prompts(), 2, seed=1)
    stopping = LocalSampler(Local(max_new_tokens=30, max_prompt_tokens=64, stop=("e", "qq")), [EOS], decode=decode)
    stopped = stopping.sample(model, prompts(), 2, seed=1)
    shortened = 0
    for free_group, group in zip(free.responses_BG, stopped.rows_BG, strict=True):
        for long, row in zip(free_group, group, strict=True):
            assert long[: len(row.token_ids)] == row.token_ids
            text = decode(row.token_ids)
            assert "e" not in text[:-1] and "qq" not in text[:-1]
            shortened += len(row.token_ids) < len(long)
            assert row.finished == (row.token_ids[-1] == EOS or text.endswith(("e", "qq")))
    assert shortened > 3


def test_rewards_of_turns_need_a_sum():
    """2·(.25, 1) of one term; a term that is squashed leaves only full episodes."""

    def scored(**settings: Any) -> Any:
        terms = {"environment": CheckedReward("environment", EnvironmentReward())}
        return GraphReward(terms, RewardGraph(terms={"environment": EnvironmentTurns(**settings)}))([TWO_TURNS])

    simple = scored(weight=2.0)
    assert simple.total_N.tolist() == [2.5] and simple.turns == [[0.5, 2.0]]
    assert scored(transform="sigmoid").turns is None


def test_turns_that_are_no_numbers_are_refused():
    broken: Any = SimpleNamespace(score_episodes=lambda episodes: RewardBatch(np.array([1.0]), turns=[[1.0]]))
    with pytest.raises(NumericError, match=r"gave \[1\.0\] for the 2 turns of episode 0; expected a finite number"):
        CheckedReward("mine", broken)([TWO_TURNS])


def test_a_term_that_weighs_nothing_has_no_turns():
    """Otherwise its NaN would reach the advantages of the full batch."""
    nan: Any = SimpleNamespace(score_episodes=lambda episodes: RewardBatch(np.array([np.nan]), turns=[[]]))
    terms = {"environment": CheckedReward("environment", EnvironmentReward()), "odd": CheckedReward("odd", nan)}
    settings = {"environment": EnvironmentTurns(), "odd": EnvironmentTurns(weight=0.0)}
    assert GraphReward(terms, RewardGraph(terms=settings))([TWO_TURNS]).turns == [[0.25, 1.0]]
    settings["odd"] = EnvironmentTurns(weight=1.0)
    unscored = GraphReward(terms, RewardGraph(terms=settings))([TWO_TURNS])
    assert np.isnan(unscored.total_N[0]) and unscored.turns == [[]]
