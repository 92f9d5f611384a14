"""The held-out loss of supervised fine-tuning counts prompts, not responses."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from support import ONE_LAYER, SMALL_WORLD, gpt2_tokenizer, planned, save_tiny

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


def test_the_loss_of_a_step_is_the_mean_over_the_tokens_that_have_one(tmp_path):
    """Nothing predicts the first token of plain text, unless the tokenizer adds a BOS; that of GPT-2 does not."""
    texts = [f"word {number} goes here" for number in range(40)]
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    model = save_tiny("gpt2", gpt2_tokenizer(texts), tmp_path / "model")
    settings = ("model=hf", f"model.path={model}", "data=sft", f"data.path={data}", "algorithm.optimizer=adamw")
    config = planned("sft", *settings).config
    algorithm = registry.build("algorithm", config.algorithm, Run(tmp_path, config, {}))
    batch = algorithm.collect(0)
    assert batch.units == sum(len(algorithm.loss(micro).loss_N) for micro in batch.micro)
    # every text is a cluster of its own, although none has a prompt
    nll = algorithm.finish().metrics["heldout_nll"]
    assert nll.clusters == len(algorithm.heldout) > 1 and nll.high < math.inf
