"""Training on conversations with tools: what is learned from, where scores land, and what depends on what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlhf_lab.algorithms.policy_gradient.rollouts import collapse_alarms
from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.types import Corpus
from rlhf_lab.data.transcript import render_prompt, response_message, to_messages
from rlhf_lab.losses.policy import POLICY_LOSSES, ClipRange, PolicyTokens
from rlhf_lab.models.build import scratch_policy
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.settings import Scratch
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.models.turns import conversation_row
from rlhf_lab.packs.agents.rewards.settings import ToolCalls
from rlhf_lab.packs.agents.rewards.tool_calls import ToolCallsReward, turn_texts
from rlhf_lab.packs.agents.tools.settings import Tools
from rlhf_lab.packs.agents.tools.tools import build
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.sampling.experience import Experience, early_scores
from rlhf_lab.sampling.settings import Local

SETTINGS = Tools(train_tasks=300, test_tasks=12, turns=4, seed=0)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return build(SETTINGS)


@pytest.fixture(scope="module")
def encoder(corpus) -> Encoder:
    texts = [text for pair in corpus.train for text in (pair.prompt, f" {pair.chosen}")]
    return Encoder(train_tokenizer(texts, 4096))


@pytest.fixture(scope="module")
def model(corpus, encoder) -> nn.Module:
    """A few steps of imitation: enough to call tools at times, too few to be sure of anything."""
    size = Scratch(hidden=32, layers=1, heads=2, max_positions=512)
    policy = scratch_policy(size, encoder.tokenizer, seed=0)
    optimiser = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    rows = [conversation_row(encoder, p.prompt, p.chosen, 384, p.meta["learn_from"]) for p in corpus.train]
    for start in range(0, 240, 16):
        chosen = rows[start : start + 16]
        batch = Experience([row for row, _ in chosen], {}, [mask for _, mask in chosen])
        micro = batch.micro(range(16), torch.ones(batch.start[-1]), "cpu")
        loss = -token_logps(policy, micro.batch).logps_N.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return policy.eval().requires_grad_(False)


def collector(corpus: Corpus, encoder: Encoder, **rollout: Any) -> EpisodeCollector:
    settings = Local(**{"max_new_tokens": 24, "max_prompt_tokens": 48, "max_episode_tokens": 140, **rollout})
    run: Any = SimpleNamespace(config=SimpleNamespace(rollout=settings, data=SETTINGS, engine="native"), corpus=corpus)
    return EpisodeCollector(run, encoder)


@pytest.fixture(scope="module")
def groups(corpus, encoder, model) -> list[list[Episode]]:
    return collector(corpus, encoder).collect(model, corpus.tasks("train")[:6], 4, seed=9)


def flat(groups: list[list[Episode]]) -> list[Episode]:
    return [episode for group in groups for episode in group]


def test_the_episodes_have_turns_and_tools_in_them(groups):
    """The other tests would say nothing of episodes with one turn."""
    episodes = flat(groups)
    assert sum(len(episode.turns) > 1 for episode in episodes) >= 12
    text = [message for e in episodes for message in to_messages(e.prompt) if message["role"] == "tool"]
    assert len(text) >= 12


def test_segments_laid_end_to_end_are_what_the_model_saw(groups, encoder):
    """The whole conversation as the encoder writes it; a turn that has no EOS was cut."""
    assert flat(groups)
    for episode in flat(groups):
        messages = [*to_messages(episode.prompt), response_message(episode.response)]
        ids = encoder.prompt(render_prompt(messages[:1]))
        assert episode.prompt_ids == ids
        texts = turn_texts(episode)
        assert len(texts) == len(episode.turns)
        for text, turn in zip(texts, episode.turns, strict=True):
            assert encoder.text(turn.token_ids) == text
        between = [segment for segment in episode.segments if not segment.sampled]
        tools = [message["content"] for message in messages if message["role"] == "tool"]
        assert [encoder.decode(segment.token_ids) for segment in between] == [
            f"\n\nTool: {content}\n\nAssistant:" for content in tools
        ]


def test_the_end_of_every_turn_is_learned(groups, encoder):
    assert flat(groups)
    for episode in flat(groups):
        finished = [turn for turn in episode.turns if turn.token_ids[-1] == encoder.eos_id]
        assert len(finished) >= len(episode.turns) - 1, "only the last turn may be cut"
        for turn in episode.turns:
            assert encoder.eos_id not in turn.token_ids[:-1]
            assert len(turn.logps) == len(turn.token_ids)
        assert sum(episode.sampled) == sum(len(turn.token_ids) for turn in episode.turns)


def test_the_ratio_is_one_before_the_first_update(groups, model):
    """Log-probabilities that the sampler recorded equal those that training computes of the same tokens."""
    episodes = flat(groups)
    experience = Experience.of(episodes)
    micro = experience.micro(range(len(episodes)), torch.ones(experience.start[-1]), "cpu")
    logps_N = token_logps(model, micro.batch).logps_N
    sampled_N = torch.tensor([logp for episode in episodes for logp in episode.logps])
    assert len(logps_N) == len(sampled_N)
    assert (logps_N - sampled_N).abs().max() < 5e-5


def policy_gradient(model: nn.Module, episodes: list[Episode], masks: list[list[bool]] | None) -> torch.Tensor:
    """Gradient of the clipped loss at ratio 1, every token of an even episode with advantage 1, of an odd one −1."""
    experience = Experience.of(episodes)
    if masks is not None:
        experience = Experience(experience.rows, {}, masks)
    model.requires_grad_(True)
    model.zero_grad()
    micro = experience.micro(range(len(episodes)), torch.ones(experience.start[-1]), "cpu")
    logps = token_logps(model, micro.batch)
    advantage_N = 1.0 - 2.0 * (logps.row_N % 2)
    tokens = PolicyTokens(logps.logps_N, logps.logps_N.detach(), advantage_N, logps.row_N, logps.rows)
    POLICY_LOSSES["ppo_clip"](tokens, ClipRange(0.2, 0.2, 0.0, 20.0)).per_token.mean().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()
    model.requires_grad_(False)
    return gradient


def test_what_tools_say_gets_no_gradient(groups, model):
    """The logits that predict a tool's tokens have no gradient; learning them too would turn the update."""
    episodes = [episode for episode in flat(groups) if len(episode.turns) > 1][:8]
    experience = Experience.of(episodes)
    micro = experience.micro(range(len(episodes)), torch.ones(experience.start[-1]), "cpu")
    row_N, column_N = micro.batch.targets()
    policy: Any = model
    hidden = policy.base_model(input_ids=micro.batch.tokens_BT).last_hidden_state
    logits = policy.get_output_embeddings()(hidden).requires_grad_()
    (-logits.log_softmax(-1)[row_N, column_N - 1, micro.batch.tokens_BT[row_N, column_N]].sum()).backward()
    moved = logits.grad.abs().sum(-1) > 0
    for index, episode in enumerate(episodes):
        expected = [False] * (len(episode.prompt_ids) - 1) + episode.sampled
        assert moved[index, : len(expected)].tolist() == expected
    own = policy_gradient(model, episodes, None)
    everything = policy_gradient(model, episodes, [[True] * len(episode.token_ids) for episode in episodes])
    cosine = torch.nn.functional.cosine_similarity(own, everything, dim=0)
    assert cosine < 0.9, "the check would not see tool tokens that are learned"


def same(first: Episode, second: Episode) -> None:
    assert first.token_ids == second.token_ids and first.sampled == second.sampled
    assert first.logps == pytest.approx(second.logps, abs=1e-5)
    assert [turn.reward for turn in first.turns] == [turn.reward for turn in second.turns]


def test_the_same_seed_gives_the_same_episodes(corpus, encoder, model, groups):
    again = collector(corpus, encoder).collect(model, corpus.tasks("train")[:6], 4, seed=9)
    for first, second in zip(flat(groups), flat(again), strict=True):
        same(first, second)
    other = collector(corpus, encoder).collect(model, corpus.tasks("train")[:6], 4, seed=10)
    assert [e.token_ids for e in flat(other)] != [e.token_ids for e in flat(groups)]


def test_an_episode_does_not_depend_on_its_neighbours(corpus, encoder, model, groups):
    """Alone, and in batches of one task: the first tasks' episodes are what they were among all."""
    alone = collector(corpus, encoder).collect(model, corpus.tasks("train")[:1], 4, seed=9)
    in_chunks = collector(corpus, encoder, batch_rows=4).collect(model, corpus.tasks("train")[:6], 4, seed=9)
    for first, second in zip(groups[0], alone[0], strict=True):
        same(first, second)
    for first, second in zip(flat(groups), flat(in_chunks), strict=True):
        same(first, second)


def test_the_episodes_of_a_group_share_one_base(corpus, groups):
    """The result of a call depends on the task, not on the attempt."""
    world: Any = corpus.environment
    assert groups
    for group in groups:
        task = group[0].task
        assert all(episode.task is task for episode in group)
        tools = [world.tools(task, seed)[0] for seed in range(4)]
        call = task.metadata["calls"][0]["arguments"]
        assert len({tool.run(**call) for tool in tools}) == 1


# rewards


def conversation(task: Task, *turns: str) -> Episode:
    """An episode in which these turns were said; a tool says "ok" behind each."""
    prompt = task.prompt
    for turn in turns[:-1]:
        messages = [response_message(turn), {"role": "tool", "content": "ok"}]
        prompt = prompt.removesuffix("\n\nAssistant:") + render_prompt(messages)  # type: ignore[arg-type]
    segments = []
    for number in range(len(turns)):
        reward = 1.0 if number == len(turns) - 1 else 0.0
        segments.append(Segment([5, 6], sampled=True, logps=[-1.0, -1.0], reward=reward))
        segments.append(Segment([7], sampled=False))
    return Episode(task, prompt, turns[-1], [1], tuple(segments[:-1]))


CALLS = [
    {"name": "search", "arguments": {"entity": "tal vor", "relation": "river"}},
    {"name": "search", "arguments": {"entity": "mal ril", "relation": "port"}},
]
TASK = Task("\n\nHuman: Find it.\n\nAssistant:", {"calls": CALLS})
RIVER = "Thought: need river\nAction: search[ tal vor ; river ]"
PORT = "Thought: need port\nAction: search[ mal ril ; port ]"
ANSWER = "Answer: sil nor"


def test_a_call_costs_and_a_useful_one_earns():
    """Cost .02, progress .4 over 2 expected calls: useful .2 − .02 = .18, repeated −.02, unreadable −.02, answer 0."""
    episode = conversation(TASK, RIVER, RIVER, "hello", PORT, ANSWER)
    reward = ToolCallsReward(ToolCalls(cost=0.02, progress=0.4))
    batch = CheckedReward("tool_calls", reward)([episode])
    assert batch.turns is not None
    assert batch.turns[0] == pytest.approx([0.18, -0.02, -0.02, 0.18, 0.0])
    assert batch.total_N[0] == pytest.approx(0.32)


def test_expected_calls_count_in_their_order():
    """PORT first is no progress; RIVER then is, and PORT again then too."""
    reward = ToolCallsReward(ToolCalls(cost=0.0, progress=1.0))
    assert reward.score_episodes([conversation(TASK, PORT, RIVER, PORT, ANSWER)]).turns == [[0.0, 0.5, 0.5, 0.0]]


def test_a_bonus_can_be_had_without_solving_anything():
    """.15 − .02 for each of three equal calls."""
    reward = ToolCallsReward(ToolCalls(bonus=0.15))
    assert reward.score_episodes([conversation(TASK, *[RIVER] * 3, ANSWER)]).total_N[0] == pytest.approx(0.39)


def test_replies_of_the_data_are_unscored():
    batch = ToolCallsReward(ToolCalls()).score_episodes([Episode(TASK, TASK.prompt, ANSWER)])
    assert np.isnan(batch.total_N[0]) and batch.turns == [[]]
    with pytest.raises(ValueError, match="cost=-1 must be at least 0"):
        ToolCalls(cost=-1)


def test_scores_land_on_the_ends_of_turns():
    """Turns of two tokens: −.02 on tokens 1 and 3; the last turn's part is what the total leaves over."""
    episode = conversation(TASK, RIVER, PORT, ANSWER)
    batch = ToolCallsReward(ToolCalls()).score_episodes([episode])
    assert batch.turns is not None
    early = early_scores([episode], [list(batch.turns[0][:-1])])
    assert early.tolist() == pytest.approx([0, -0.02, 0, -0.02, 0, 0])
    assert Experience.of([episode]).last().tolist() == [5]


# collapse


def test_alarms_of_collapse():
    assert not collapse_alarms({"calls": 2.0, "wasted_groups": 0.5, "correct": 0.4})
    assert not collapse_alarms({"wasted_groups": 0.9}), "data without tools have no calls"
    (few,) = collapse_alarms({"calls": 0.1, "wasted_groups": 0.5, "correct": 0.1})
    assert few.startswith("calls per episode fell below 0.5")
    (equal,) = collapse_alarms({"calls": 2.0, "wasted_groups": 0.8, "correct": 0.1})
    assert equal.startswith("fewer than 25% of an iteration's groups")
    assert not collapse_alarms({"calls": 2.0, "wasted_groups": 0.8, "correct": 0.9}), "learned, not collapsed"
