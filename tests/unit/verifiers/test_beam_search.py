"""Beam search over steps: a scripted policy, a reward that is read from a table, and every candidate by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import ONE_LAYER, checked

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.evaluations.beam_search import BeamSearch
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.sampling.local import Samples
from rlhf_lab.sampling.turns import RowTokens
from rlhf_lab.training.run import Run

PROMPT = "\n\nHuman: Kim has 5 toys. Kim finds 3 more. Kim doubles that. How many toys does Kim have now?\n\nAssistant:"
SMALL = ("data=arithmetic_small", "data.train_problems=64", "data.test_problems=24", "rollout.max_new_tokens=64")
STEPS = {
    "": ["5 + 3 = 8", "5 + 3 = 9", "5 + 3 = 7", "5 + 3 = 8"],
    "5 + 3 = 8": ["8 * 2 = 16", "8 * 2 = 61"],
    "5 + 3 = 9": ["9 * 2 = 18", "9 * 2 = 18"],
    "5 + 3 = 8\n8 * 2 = 16": ["#### 16", "#### 61"],
    "5 + 3 = 9\n9 * 2 = 18": ["#### 18", "#### 18"],
}
"""Solution so far → the steps that the policy samples next."""
SCORES = {
    "5 + 3 = 8": 0.9,
    "5 + 3 = 9": 0.6,
    "5 + 3 = 7": 0.1,
    "5 + 3 = 8\n8 * 2 = 16": 0.8,
    "5 + 3 = 8\n8 * 2 = 61": np.nan,
    "5 + 3 = 9\n9 * 2 = 18": 0.7,
    "5 + 3 = 8\n8 * 2 = 16\n#### 16": 0.5,
    "5 + 3 = 8\n8 * 2 = 16\n#### 61": 0.1,
    "5 + 3 = 9\n9 * 2 = 18\n#### 18": 0.65,
}


class Scripted:
    """A sampler that continues a solution as `STEPS` says: with a line break, or with the end after an answer."""

    def __init__(self, encoder: Encoder):
        self.encoder = encoder
        self.asked: list[tuple[str, int]] = []
        self.sampled = 0

    def sample(self, model, prompts, group, seed, *, temperature, next_turn, max_turns, opened=None):
        start = len(self.encoder.prompt(PROMPT))
        rows = []
        for ids in prompts:
            so_far = self.encoder.tokenizer.decode(ids[start:]).strip()
            self.asked.append((so_far, group))
            rows.append([self._row(so_far, text) for text in STEPS[so_far][:group]])
        return Samples(list(prompts), rows)

    def _row(self, so_far: str, step: str) -> RowTokens:
        ends = step.startswith("####")
        start = f"{so_far}\n" if so_far else ""
        before = self.encoder.response(start)[:-1] if start else []
        # without the end token, which only an answer has
        ids = self.encoder.response(start + step) if ends else self.encoder.response(f"{start}{step}\n")[:-1]
        ids = ids[len(before) :]
        self.sampled += len(ids)
        return RowTokens(ids, [True] * len(ids), [0.0] * len(ids), True)


@pytest.fixture
def search(tmp_path):
    solutions = [f" {text}" for text in SCORES]
    encoder = Encoder(train_tokenizer([PROMPT, *solutions], 400))
    run = Run(tmp_path, checked("beam_search", *SMALL, *ONE_LAYER), {})

    def reward(episodes):
        return RewardBatch(np.array([SCORES[episode.response] for episode in episodes]))

    found = BeamSearch(run, torch.nn.Linear(1, 1), EpisodeCollector(run, encoder), reward)
    found.steps.sampler = Scripted(encoder)
    return found


def test_every_step_by_hand(search):
    """Four first steps, two of them equal; the best two stay. The answer with the highest reward, .65, wins: 18."""
    (found,) = search.search([Task(PROMPT)], [search.encoder.prompt(PROMPT)], beams=4, width=2)
    assert found.response == "5 + 3 = 9\n9 * 2 = 18\n#### 18"
    sampler = search.steps.sampler
    assert sampler.asked == [
        ("", 4),
        ("5 + 3 = 8", 2),
        ("5 + 3 = 9", 2),
        ("5 + 3 = 8\n8 * 2 = 16", 2),
        ("5 + 3 = 9\n9 * 2 = 18", 2),
    ]
    assert found.tokens == sampler.sampled > 0


def test_one_beam_is_one_sample(search):
    (found,) = search.search([Task(PROMPT)], [search.encoder.prompt(PROMPT)], beams=1, width=4)
    assert found.response == "5 + 3 = 8\n8 * 2 = 16\n#### 16"
    assert {group for _, group in search.steps.sampler.asked} == {1}


def test_a_solution_ends_at_the_maximum_number_of_tokens(search):
    search.max_new_tokens = 1
    (found,) = search.search([Task(PROMPT)], [search.encoder.prompt(PROMPT)], beams=2, width=1)
    assert found.response == "5 + 3 = 8" and len(search.steps.sampler.asked) == 1


def test_steps_end_with_a_line_and_with_the_run_s_own_texts(tmp_path):
    run = Run(tmp_path, checked("beam_search", *SMALL, *ONE_LAYER, "rollout.stop=[END]"), {})
    encoder = Encoder(train_tokenizer([PROMPT], 300))
    assert EpisodeCollector(run, encoder, further_stop=("\n",)).settings.stop == ("END", "\n")
    assert EpisodeCollector(run, encoder).settings.stop == ("END",)
