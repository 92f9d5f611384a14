"""The head on steps: its loss, the positions that it reads, and that cutting a batch changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support import ONE_LAYER, gpt2_tokenizer, llama_tokenizer, planned

from rlhf_lab.config import registry
from rlhf_lab.core.errors import DataError
from rlhf_lab.environments.maths.chains import step_lines
from rlhf_lab.losses.reward_model import step_loss
from rlhf_lab.models.build import load_encoder, load_reward_model
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.steps import end_tokens, step_logits, step_positions, step_row
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.rewards.learned.process import JudgeFile, ProcessReward, StepJudge
from rlhf_lab.rewards.learned.settings import Process
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.loop import train
from rlhf_lab.training.run import Run

SMALL = (
    *("data=arithmetic_small", "data.train_problems=64", "data.test_problems=24", "rollout.max_new_tokens=16"),
    "checkpoint.every_steps=0",
)
TEXTS = [
    "5 + 3 = 8\n8 * 2 = 16\n#### 16",
    "She has 24-3 = 21 whole jars.\nÉté, 7 ÷ 2 = 3.5!\n\n#### 3.5",
    "one line",
    "trailing  \n  spaces here \n",
]


def test_against_float64():
    rng = np.random.default_rng(0)
    z, y = rng.normal(0, 6, 500), rng.random(500)
    p = 1 / (1 + np.exp(-z))
    expected = -(y * np.log(p) + (1 - y) * np.log1p(-p))
    found = step_loss(torch.tensor(z), torch.tensor(y)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    extreme = step_loss(torch.tensor([80.0, -80.0]), torch.tensor([0.0, 1.0]))
    assert extreme.tolist() == pytest.approx([80.0, 80.0])


@pytest.mark.parametrize("make", [gpt2_tokenizer, llama_tokenizer, lambda texts: train_tokenizer(texts, 400)])
@pytest.mark.parametrize("response", TEXTS)
def test_a_step_ends_at_the_token_with_its_last_character(make, response):
    encoder = Encoder(make(TEXTS))
    ids, lines = encoder.response(response), step_lines(response)
    for (_, end), position in zip(lines, end_tokens(encoder, response, [end for _, end in lines]), strict=True):
        seen = encoder.tokenizer.decode(ids[: position + 1])
        assert seen.strip().startswith(response[:end].strip()[: len(seen.strip())])
        assert seen.rstrip().endswith(response[:end][-1])
        before = encoder.tokenizer.decode(ids[:position])
        assert len(before.rstrip()) < len(seen.rstrip())


class Slow:
    """A tokenizer that does not say what its tokens cover: one token a word, a line end with its last word."""

    is_fast, eos_token_id, bos_token_id = False, 0, None

    def __init__(self, merges: bool):
        self.merges = merges

    def __call__(self, text, **_):
        words = text.replace("\n", "\n " if self.merges else " \n ").split(" ")
        return {"input_ids": [len(word) + 31 * sum(map(ord, word)) for word in words if word]}


def test_a_slow_tokenizer_counts_or_says_that_it_cannot():
    assert end_tokens(Encoder(Slow(False)), "one two\nthree", [7, 13]) == [1, 3]
    with pytest.raises(DataError, match="merges the end of the step 'one two'"):
        end_tokens(Encoder(Slow(True)), "one two\nthree", [7, 13])


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("policy")
    stage = planned("sft", *SMALL, *ONE_LAYER, "algorithm.epochs=1", f"outputs={out}")
    execute(stage)
    return Path(stage.model)


def judge(policy: Path, kind: str = "prm", max_length: int = 128, tools: str = "none") -> StepJudge:
    """A judge with a head of noise."""
    config = planned("sft", *SMALL, *ONE_LAYER).config
    model = load_reward_model(policy, config.model)
    model.score.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    return StepJudge(model, load_encoder(policy, config.model), JudgeFile(kind, max_length, tools), "cpu", 200)


def test_a_judge_with_a_calculator_reads_its_results(policy):
    """Each step is judged at the end of its line, after the result of its equation."""
    prompt, response = "\n\nHuman: Kim has 5 toys. How many?\n\nAssistant:", "5 + 3 = 9\n9 * 2 = 18\n#### 18"
    (found,) = judge(policy, tools="calculator")([prompt], [response])
    (expected,) = judge(policy)([prompt], ["5 + 3 = 9 [8]\n9 * 2 = 18 [18]\n#### 18"])
    (without,) = judge(policy)([prompt], [response])
    assert found.steps.tolist() == expected.steps.tolist() and found.last == expected.last
    assert found.steps[0] != without.steps[0]


def test_a_step_is_judged_by_what_stands_before_it(policy):
    """Step k of a full solution gets what it gets as the last token of the solution so far."""
    requested, prompt = judge(policy), "\n\nHuman: Kim has 5 toys. How many?\n\nAssistant:"
    response = "5 + 3 = 8\n8 * 2 = 16\n#### 16"
    row = step_row(requested.encoder, prompt, response, step_lines(response), 128)
    batch = TokenBatch.from_rows([row.row, ([1], [2, 3])])
    logits = step_logits(requested.model, batch)[step_positions([row.columns, [0]], "cpu")][:3]
    for k, (_, end) in enumerate(step_lines(response)):
        head, tail = row.row[0], requested.encoder.response(response[:end])[:-1]
        alone = step_logits(requested.model, TokenBatch.from_rows([(head, tail)]))
        torch.testing.assert_close(alone[0, len(head) + len(tail) - 1], logits[k], atol=1e-5, rtol=1e-4)


def test_batches_do_not_change_a_judgement_and_aggregations_are_parts(policy):
    requested = judge(policy)
    prompts = [f"\n\nHuman: Kim has {i} toys. How many?\n\nAssistant:" for i in range(4)]
    responses = ["5 + 3 = 8\n8 * 2 = 16\n#### 16", "#### 2", "", "1 + 1 = 2\n#### 2"]
    together = requested(prompts, responses)
    assert [len(each.steps) for each in together] == [3, 1, 0, 2]
    for prompt, response, each in zip(prompts, responses, together, strict=True):
        (alone,) = requested([prompt], [response])
        np.testing.assert_allclose(alone.steps, each.steps, atol=1e-6)
        assert alone.last == pytest.approx(each.last, abs=1e-6)
    steps = together[0].steps
    found = ProcessReward(requested, Process(aggregate="prod", no_step=-1.0))(prompts, responses)
    expected = {"min": steps.min(), "mean": steps.mean(), "prod": steps[0] * steps[1] * steps[2], "last": steps[2]}
    assert {name: found.parts[name][0] for name in expected} == pytest.approx(expected)
    assert found.total_N[0] == found.parts["prod"][0]
    assert found.total_N[2] == -1.0
    assert found.parts["steps"].tolist() == [3, 1, 0, 2]


def test_steps_beyond_the_length_are_not_seen(policy):
    requested, prompt = judge(policy, max_length=24), "\n\nHuman: Kim has 5 toys. How many?\n\nAssistant:"
    response = "\n".join(["5 + 3 = 8"] * 6)
    (text,) = requested([prompt], [response])
    assert 1 <= len(text.steps) < 6


@pytest.mark.parametrize("recipe", ["prm", "orm"])
def test_eight_at_once_equals_one_at_a_time(recipe, tmp_path, policy):
    """One normaliser: the mean over a step's labels, however its rows are cut."""

    def trained(name: str, micro: int, lr: str = "1e-2") -> tuple[dict, int]:
        config = planned(
            recipe,
            *SMALL,
            *ONE_LAYER,
            *(f"needs.policy={policy}", "algorithm.problems=24", "algorithm.trajectories=1"),
            *("algorithm.batch_size=8", "algorithm.epochs=1", "algorithm.optimizer=adamw", "algorithm.adam_eps=1e-3"),
            *(f"algorithm.lr={lr}", f"algorithm.micro_batch_tokens={micro}"),
        ).config
        (tmp_path / name).mkdir()
        run = Run(tmp_path / name, config, {"policy": str(policy)})
        algorithm = registry.build("algorithm", config.algorithm, run)
        algorithm.model.double()
        batch = algorithm.collect(0)
        assert batch.units == sum(len(micro.label_N) for micro in batch.micro)
        passes = sum(len(algorithm.collect(step).micro) for step in range(algorithm.total_steps))
        train(algorithm, run, recipe)
        return algorithm.model.state_dict(), passes

    full, passes = trained("whole", 0)
    single, single_passes = trained("single", 1)
    start, _ = trained("start", 0, "1e-12")
    assert single_passes >= 4 * passes
    assert max(float((full[name] - start[name]).abs().max()) for name in full) > 1e-3
    assert max(float((full[name] - single[name]).abs().max()) for name in full) <= 1e-6
