"""Processes that share a stage score gold together, and reach what one process does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from processes import together
from support import prompt_text, said, save_tiny, toy_rows

from rlhf_lab.core import ranks
from rlhf_lab.core.types import Corpus
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.rewards.gold_oracle import GoldOracle
from rlhf_lab.rewards.learned.process import JUDGE_FILE
from rlhf_lab.rewards.saved import open_reward

pytestmark = pytest.mark.slow

REPLIES = [chosen for _, chosen, _ in toy_rows(9)]


def scores(directory: str) -> np.ndarray:
    corpus = Corpus("pairs", [], [], "")
    oracle = GoldOracle(lambda: open_reward(directory, "cpu", print, batch_tokens=64), corpus, print)
    episodes = said([prompt_text("what?")] * len(REPLIES), REPLIES)
    return oracle.measure([episode.prompt for episode in episodes], REPLIES)["gold"]


def score_together(directory: str, expected: list[float]) -> None:
    assert ranks.world() == 2
    assert np.allclose(scores(directory), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["classifier", "prm"])
def test_two_processes_share_the_work(tmp_path: Path, kind: str) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    tokenizer = train_tokenizer(REPLIES, 400)
    base = save_tiny("gpt2", tokenizer, tmp_path / "base")
    torch.manual_seed(1)
    AutoModelForSequenceClassification.from_pretrained(base, num_labels=1).save_pretrained(tmp_path / kind)
    tokenizer.save_pretrained(tmp_path / kind)
    if kind != "classifier":
        (tmp_path / kind / JUDGE_FILE).write_text(f'{{"kind": "{kind}", "max_length": 128}}')
    expected = scores(str(tmp_path / kind))
    assert len(set(expected)) > 1
    together(score_together, str(tmp_path / kind), expected.tolist())
