"""The held-out loss of supervised fine-tuning counts prompts, not responses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.config import registry
from rlhf_lab.training.run import Run


def heldout_nll(directory, copies: int):
    """The metric of an untrained model when every held-out pair is there `copies` times."""
    config = planned("sft", *SMALL_WORLD, *ONE_LAYER).config
    run = Run(directory, config, {})
    run.corpus = replace(run.corpus, test=[pair for pair in run.corpus.test[:8] for _ in range(copies)])
    return registry.build("algorithm", config.algorithm, run).finish().metrics["heldout_nll"]


def test_replies_to_one_prompt_are_one_cluster(tmp_path):
    """Three copies of every pair are no new evidence: the same mean, the same interval, as many prompts."""
    once, thrice = heldout_nll(tmp_path / "once", 1), heldout_nll(tmp_path / "thrice", 3)
    assert thrice.clusters == once.clusters == 8
    assert thrice.n == 3 * once.n
    assert (thrice.mean, thrice.low, thrice.high) == pytest.approx((once.mean, once.low, once.high), rel=1e-5)
