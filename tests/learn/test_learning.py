"""Each algorithm learns what was planted for it, in seconds."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from support import ONE_LAYER, planned, plant, prompt_text, toy_rows, write_pairs

from rlhf_lab.config import registry
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.settings import Scratch
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.rewards.term import TermSettings
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local
from rlhf_lab.stages.execute import ensure, execute
from rlhf_lab.training.run import Run

NO_CHECKPOINT = "checkpoint.every_steps=0"
FIXED = ("algorithm.optimizer=adamw", "algorithm.batch_size=16", NO_CHECKPOINT)
EVALUATION = ("evaluation.prompts=8", "evaluation.samples_per_prompt=4", "evaluation.pairs=20")


def metrics(directory: Path) -> list[dict]:
    from rlhf_lab.core.files import read_jsonl

    return read_jsonl(directory / "metrics.jsonl")


def test_sft_memorises_a_toy_corpus(tmp_path):
    answers = {"where": "in the old town", "when": "at nine sharp", "who": "nobody we know", "why": "because it rains"}
    rows = [(f"{q} is it {i}", response, "no") for i in range(8) for q, response in answers.items()]
    data = write_pairs(tmp_path / "toy.jsonl", rows)
    stage = planned(
        "sft",
        "data=pairs",
        f"data.path={data}",
        *FIXED,
        *("model.hidden=32", "model.layers=1", "algorithm.lr=1e-2", "algorithm.epochs=40", f"outputs={tmp_path}"),
    )
    result = execute(stage)
    assert result["metrics"]["heldout_nll"]["mean"] < 0.1
    encoder = load_encoder(stage.model, Scratch())
    sampler = LocalSampler(Local(temperature=0, max_new_tokens=12, max_prompt_tokens=32), encoder.stop_ids)
    prompts = [encoder.prompt(prompt_text(f"{q} is it 3")) for q in answers]
    samples = sampler.sample(load_policy(stage.model, Scratch()), prompts, 1, 0)
    assert [encoder.text(responses[0]) for responses in samples.responses_BG] == list(answers.values())


def test_dpo_raises_the_margin(toy, tmp_path):
    """The policy has imitated long responses; the pairs it is now trained on prefer short ones."""
    _, policy = toy
    data = write_pairs(tmp_path / "shorter.jsonl", [(q, short, long) for q, long, short in toy_rows(200)])
    stage = planned(
        *("dpo", "data=pairs", f"data.path={data}", f"needs.policy={policy}", "needs.reward=null"),
        *FIXED,
        *EVALUATION,
        *("algorithm.lr=1e-2", "algorithm.beta=0.3", "algorithm.epochs=6", "algorithm.log_every_steps=1"),
        *("rollout.max_new_tokens=12", f"outputs={tmp_path}"),
    )
    result = execute(stage)
    rows = metrics(stage.directory)
    assert rows[0]["margin"] == pytest.approx(0, abs=1e-5)
    assert rows[0]["loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert np.mean([row["margin"] for row in rows[-5:]]) > 1
    assert np.mean([row["loss"] for row in rows[-5:]]) < 0.4
    sft, dpo = (policy["metrics"] for policy in result["policies"])
    assert dpo["implicit_accuracy"]["mean"] >= 0.9
    assert dpo["kl"]["mean"] > 0
    assert dpo["tokens"]["mean"] < sft["tokens"]["mean"] - 1


class CountsBlue:
    """Reward: number of times a response says blue."""

    def __call__(self, prompts, responses):
        return RewardBatch(np.array([text.split().count("blue") for text in responses], dtype=float))


@pytest.fixture
def planted(monkeypatch) -> TermSettings:
    """A reward of a plug-in, registered for one test."""
    return plant(monkeypatch, lambda settings, run: CountsBlue())


@pytest.mark.parametrize("buffer", ["current", "full"])
def test_iterative_dpo_raises_a_planted_reward(toy, planted, tmp_path, buffer):
    data, policy = toy
    config = planned(
        *("dpo_iterative", "data=pairs", f"data.path={data}", f"needs.policy={policy}", "needs.baseline=null"),
        *FIXED,
        *EVALUATION,
        *("algorithm.lr=3e-3", "algorithm.rounds=3", "algorithm.prompts_per_round=64", "algorithm.corpus_fraction=0"),
        *("algorithm.updates_per_pair=2", f"algorithm.buffer={buffer}", "rollout.max_new_tokens=10"),
    ).config
    from rlhf_lab.training.loop import train

    run = Run(tmp_path, config.replace(reward=RewardGraph(terms={"planted": planted})), {"policy": str(policy)})
    algorithm = registry.build("algorithm", config.algorithm, run)
    train(algorithm, run, "planted")
    result = algorithm.finish()
    proxy = [policy["metrics"]["proxy"]["mean"] for policy in result.policies]
    assert [policy["name"] for policy in result.policies] == ["SFT", "iteration 1", "iteration 2", "iteration 3"]
    assert proxy[-1] > proxy[0] + 1
    assert proxy[1] > proxy[0]
    assert result.policies[-1]["metrics"]["win_rate"]["low"] > 0.5
    assert result.metrics["staleness"] == (0 if buffer == "current" else pytest.approx(0.5, abs=0.1))
    assert algorithm.reward.abstained == 0


def test_refresh_builds_again_and_ends_the_same(toy, tmp_path):
    data, _ = toy
    common = ("data=pairs", f"data.path={data}", *FIXED, *ONE_LAYER, "algorithm.epochs=0.2", f"outputs={tmp_path}")
    first = ensure(planned("sft", *common), 0)
    stage = planned("sft", *common, "artifacts.refresh=true")
    path = stage.directory / "result.json"
    os.utime(path, (1, 1))
    assert ensure(planned("sft", *common), time.time()) == first
    assert path.stat().st_mtime == 1  # reused
    again = ensure(stage, time.time() - 1)
    assert path.stat().st_mtime > 1
    assert again["metrics"] == first["metrics"]
    built = path.stat().st_mtime_ns
    ensure(stage, time.time() - 60)  # as another job of the same study: what this run built counts as fresh
    assert path.stat().st_mtime_ns == built


@pytest.mark.slow
def test_sft_learns_every_turn_of_a_conversation(tmp_path):
    """The first turn of the assistant is in no row's response. It is learned only with `assistant_turns=all`."""
    talk = [
        {"role": "user", "content": "red or blue?"},
        {"role": "assistant", "content": "blue blue"},
        {"role": "user", "content": "and now?"},
        {"role": "assistant", "content": "red"},
    ]
    # Copies that differ in their first question, so that some are held-out.
    rows = [{"messages": [{**talk[0], "content": f"{i} {talk[0]['content']}"}, *talk[1:]]} for i in range(64)]
    data = tmp_path / "talk.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    learned, losses = {}, {}
    for turns in ("all", "last"):
        settings = ("algorithm.optimizer=adamw", "algorithm.lr=1e-2", "algorithm.batch_size=8", "algorithm.epochs=16")
        stage = planned(
            *("sft", "data=sft", f"data.path={data}", f"algorithm.assistant_turns={turns}", *settings, *ONE_LAYER),
            f"outputs={tmp_path}",
        )
        execute(stage)
        encoder = load_encoder(stage.model, stage.config.model)
        model = load_policy(stage.model, stage.config.model)
        row = encoder.row("\n\nHuman: 99 red or blue?\n\nAssistant:", "blue blue", 64)
        logps = token_logps(model, TokenBatch.from_rows([row])).logps_N
        losses[turns] = [row["loss"] for row in metrics(stage.directory)]
        learned[turns] = float(logps.detach().mean().exp())
    streamed = planned(
        *("sft", "data=sft", f"data.path={data}", "data.streaming=true", *settings, *ONE_LAYER), f"outputs={tmp_path}"
    )
    execute(streamed)
    assert [row["loss"] for row in metrics(streamed.directory)] == losses["all"]
    assert learned["all"] > 0.8
    assert learned["last"] < 0.5
