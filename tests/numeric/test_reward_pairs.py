"""A step of reward modelling on its pairs: sentences of confidence, and ODIN's length statistic in parts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rlhf_lab.algorithms.reward_models.reward_members import confidence_rows, length_statistic

EOS, SURE, UNSURE = 9, [51, 52], [61]
ENCODER = SimpleNamespace(chat=False, eos_id=EOS, response=lambda text: [*(SURE if text == "sure" else UNSURE), EOS])


def test_a_sentence_of_confidence_stands_before_the_end():
    chosen, rejected = confidence_rows(ENCODER, (([1], [2, 3, EOS]), ([1], [4, EOS])), "sure", "unsure", 20)
    assert chosen == (([1], [2, 3, *SURE, EOS]), ([1], [2, 3, *UNSURE, EOS]))
    assert rejected == (([1], [4, *SURE, EOS]), ([1], [4, *UNSURE, EOS]))


def test_a_long_reply_loses_its_end_and_keeps_the_sentence():
    (sure, _), _ = confidence_rows(ENCODER, (([1, 1], [2, 3, 4, 5]), ([1], [4])), "sure", "unsure", 7)
    assert sure == ([1, 1], [2, 3, *SURE, EOS])


def test_the_length_statistic_is_of_the_pairs_in_the_share():
    """Quality (first output) is uncorrelated with length, the length head (second) is length: the best value, −1."""
    tokens_2B = torch.tensor([[1.0, 2.0, 50.0], [3.0, 4.0, 1.0]])
    quality_2B = torch.tensor([[1.0, -1.0, 7.0], [-1.0, 1.0, 3.0]])
    scores_2BA = torch.stack([quality_2B, 5 * tokens_2B], dim=-1)
    in_bootstrap_B = torch.tensor([True, True, False])
    assert length_statistic(scores_2BA, tokens_2B, in_bootstrap_B).item() == pytest.approx(-1.0, abs=1e-6)
    swapped = length_statistic(scores_2BA.flip(-1), tokens_2B, in_bootstrap_B).item()
    assert swapped == pytest.approx(1.0, abs=1e-6)
    assert length_statistic(scores_2BA, tokens_2B, torch.tensor([True, False, False])).item() == 0.0
