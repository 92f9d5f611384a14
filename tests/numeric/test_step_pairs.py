"""Pairs of steps: which steps become a pair, and that DPO on them compares two steps given the steps before them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import ONE_LAYER, checked, disturb, planned

from rlhf_lab.algorithms.preference.dpo import preference_step
from rlhf_lab.algorithms.preference.step_pairs import NO_ALTERNATIVE, first_steps, is_alternative
from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import json_lines, read_jsonl, write_text
from rlhf_lab.core.types import Pair
from rlhf_lab.data.generated import UNFINISHED, read_generated, write_generated
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.build import load_encoder, load_policy, save_model
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.pair_rows import pair_rows
from rlhf_lab.results.answer_corpora import pairs_of_steps
from rlhf_lab.results.rundir import as_estimate
from rlhf_lab.sampling.local import Samples
from rlhf_lab.sampling.solutions import Trajectory
from rlhf_lab.sampling.turns import RowTokens
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.run import Run

SMALL = ("data=arithmetic_small", "data.max_steps=3", "data.train_problems=64", "data.test_problems=8", *ONE_LAYER)
PROMPT = "\n\nHuman: Kim has 5 toys. Kim finds 3 more. Kim doubles that. How many toys does Kim have now?\n\nAssistant:"
PREFIX, RIGHT, WRONG = "5 + 3 = 8", "5 + 3 = 8\n8 * 2 = 16", "5 + 3 = 8\n8 * 2 = 18"
SOLUTIONS = [f"{RIGHT}\n#### 16", f"{WRONG}\n#### 18", f"{WRONG}\n#### 18"]
SETTINGS = ("algorithm.problems=1", "algorithm.solutions=3", "algorithm.rollouts=2")


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    """An untrained policy whose vocabulary has the words of the problem."""
    directory = tmp_path_factory.mktemp("policy")
    config = checked("sft", *SMALL)
    run = Run(directory, config, {})
    run.corpus = replace(run.corpus, train=[*run.corpus.train, Pair(PROMPT, SOLUTIONS[0], "")])
    algorithm = registry.build("algorithm", config.algorithm, run)
    save_model(algorithm.model, algorithm.encoder, directory / "model")
    return directory / "model"


class Scripted:
    """A sampler with scripted continuations: steps so far → responses."""

    def __init__(self, encoder, script: dict[str, list[str]]):
        self.encoder, self.script = encoder, script

    def sample(self, model, prompts, group, seed, *, temperature, next_turn, max_turns, opened=None):
        assert temperature == 1.0
        start = len(self.encoder.prompt(PROMPT))
        rows = []
        for ids in prompts:
            steps = self.encoder.tokenizer.decode(ids[start:]).strip()
            # a response starts with a space, its continuation does not
            encode = self.encoder.continuation if steps else lambda text: self.encoder.response(text)[:-1]
            responses = [[*encode(text), self.encoder.eos_id] for text in self.script[steps][:group]]
            assert len(responses) == group
            rows.append([RowTokens(ids, [True] * len(ids), [0.0] * len(ids), True) for ids in responses])
        return Samples(list(prompts), rows)


def made(policy: Path, directory: Path, script: dict[str, list[str]], *overrides: str):
    config = checked("step_pairs", *SMALL, *SETTINGS, *overrides)
    run = Run(directory, config, {"policy": str(policy)})
    run.corpus = replace(run.corpus, train=[Pair(PROMPT, SOLUTIONS[0], "")], answers={PROMPT: "16"})
    making = registry.build("algorithm", config.algorithm, run)
    making.solutions.collector.sampler = Scripted(making.solutions.encoder, script)
    return making.finish().metrics


def test_an_alternative_differs_first_in_the_step_and_is_right_up_to_it():
    assert [first_steps(f"{WRONG}\n#### 18", count) for count in (0, 1, 2)] == ["", PREFIX, WRONG]
    wrong = Trajectory(PROMPT, SOLUTIONS[1], 0.0)
    right = Trajectory(PROMPT, SOLUTIONS[0], 1.0, (1.0, 1.0, 0.0))
    assert is_alternative(right, wrong, 1)  # the third step does not count
    assert not is_alternative(right, wrong, 0)  # the first step is the same
    assert not is_alternative(right, wrong, 2)  # they differ before the third step
    assert not is_alternative(replace(right, labels=(1.0, 0.0, 1.0)), wrong, 1)


def test_the_world_finds_the_wrong_step_and_a_right_one(policy, tmp_path):
    """Of three alternatives one repeats the mistake and one makes another; the third is right whatever its answer."""
    alternatives = ["\n8 * 2 = 18\n#### 18", "\n8 * 2 = 17\n#### 16", "\n8 * 2 = 16\n#### 61"]
    script = {"": SOLUTIONS, PREFIX: alternatives}
    metrics = made(policy, tmp_path, script, "algorithm.alternatives=3")
    (pair,) = read_generated(tmp_path, "pairs")
    assert (pair.prompt, pair.chosen, pair.rejected, pair.meta[UNFINISHED]) == (PROMPT, RIGHT, WRONG, True)
    assert metrics["correct/sampled"].mean == pytest.approx(1 / 3)
    assert (metrics["made/items"], metrics["made/rows"], metrics["made/rejected/pair made before"]) == (2, 1, 1)
    assert metrics["made/label_agreement"].mean == 1
    # a pair of complete solutions needs one with a right answer
    with pytest.raises(DataError, match="none of 3 solutions gave a pair"):
        made(policy, tmp_path, script, "algorithm.alternatives=3", "algorithm.unit=solution")


def test_completions_find_the_wrong_step_without_a_world(policy, tmp_path):
    """From 5 + 3 = 8 one completion of two reaches 16; from 8 * 2 = 18 none does, so that step is the wrong one."""
    script = {
        "": SOLUTIONS,
        PREFIX: ["\n8 * 2 = 18\n#### 18", "\n8 * 2 = 16\n#### 16"],
        WRONG: ["\n#### 18", "\n#### 18"],
    }
    overrides = ("algorithm.labels=monte_carlo", "algorithm.alternatives=2")
    made(policy, tmp_path, script, *overrides)
    (row,) = read_jsonl(tmp_path / "corpus.jsonl")
    assert (row["step"], row["chosen"], row["rejected"]) == (1, RIGHT, WRONG)
    made(policy, tmp_path, script, *overrides, "algorithm.unit=solution")
    (pair,) = read_generated(tmp_path, "pairs")
    assert (pair.chosen, pair.rejected) == (SOLUTIONS[0], SOLUTIONS[1])
    assert UNFINISHED not in pair.meta
    hopeless = {**script, PREFIX: ["\n8 * 2 = 18\n#### 18"] * 2}
    with pytest.raises(DataError, match="none of 3 solutions gave a pair"):
        made(policy, tmp_path, hopeless, *overrides)


def test_the_shared_steps_cancel_in_the_loss(policy):
    """−log σ(β(log π/π_ref of the right step − of the wrong step)), each given the prompt and the steps before it."""
    settings = checked("dpo", "algorithm.beta=0.7").algorithm
    model_settings = checked("sft", *SMALL).model
    model, reference = disturb(load_policy(policy, model_settings), 0.1), load_policy(policy, model_settings)
    encoder = load_encoder(policy, model_settings)
    rows = pair_rows(encoder, Pair(PROMPT, RIGHT, WRONG, {UNFINISHED: True}), 128)
    shared = len(encoder.response(PREFIX)) - 1  # without EOS
    step_logps = {}
    for name, scorer in (("policy", model), ("reference", reference)):
        for side, (prompt_ids, response_ids) in zip(("right", "wrong"), rows, strict=True):
            assert response_ids[-1] != encoder.eos_id
            given = [*prompt_ids, *response_ids[:shared]]
            with torch.no_grad():
                logps = token_logps(scorer, TokenBatch.from_rows([(given, response_ids[shared:])]))
            step_logps[name, side] = logps.sum_B()
    log_ratio = {side: step_logps["policy", side] - step_logps["reference", side] for side in ("right", "wrong")}
    expected = -torch.nn.functional.logsigmoid(0.7 * (log_ratio["right"] - log_ratio["wrong"]))
    with torch.no_grad():
        whole = [token_logps(reference, TokenBatch.from_rows([row])).sum_B() for row in rows]
        found = preference_step(model, [rows], PairLogps(*whole), settings, "cpu")
    assert torch.allclose(found.loss_N, expected, atol=1e-4)
    # a finished pair ends with EOS, which a step must not be followed by
    finished = pair_rows(encoder, Pair(PROMPT, RIGHT, WRONG), 128)
    assert [response[-1] for _, response in finished] == [encoder.eos_id] * 2


def test_only_preference_losses_train_on_unfinished_pairs():
    pair = Pair(PROMPT, RIGHT, WRONG, {UNFINISHED: True})
    assert checked("dpo").algorithm.uses_row(pair)
    assert not checked("sft").algorithm.uses_row(pair)
    assert not checked("reward_model").algorithm.uses_row(pair)


def test_dpo_trains_on_pairs_of_steps_for_data_without_pairs(policy, tmp_path):
    """A file in the form of GSM8K has no pairs; those of a corpus suffice, but not if the file has to provide some."""
    question = PROMPT.removeprefix("\n\nHuman: ").removesuffix("\n\nAssistant:")
    heldout = [f"Kim has {n} toys. Kim finds 3 more. How many toys does Kim have now?" for n in range(4)]
    for name, questions in (("train", [question]), ("test", heldout)):
        rows = [{"question": each, "answer": "5 + 3 = 8\n#### 8"} for each in questions]
        write_text(tmp_path / f"{name}.jsonl", json_lines(rows))
    pair = {"prompt": PROMPT, "chosen": RIGHT, "rejected": WRONG, UNFINISHED: True}
    (tmp_path / "corpus").mkdir()
    write_generated(tmp_path / "corpus", "pairs", [pair] * 4, [], {})
    command = (
        *("data=gsm8k", f"data.path={tmp_path}/train.jsonl", f"data.test_path={tmp_path}/test.jsonl"),
        *(f"needs.policy={policy}", f"needs.corpus={tmp_path}/corpus", "evaluation.prompts=2"),
        *("evaluation.samples_per_prompt=2", "algorithm.batch_size=2"),
        *ONE_LAYER,
    )
    result = execute(planned("step_dpo", *command, f"outputs={tmp_path}"))
    assert [each["name"] for each in result["policies"]] == ["SFT", "one-pass DPO"]
    assert "correct_greedy" in result["policies"][1]["metrics"]
    assert "ranking_accuracy" not in result["policies"][1]["metrics"]  # the data have no pairs to rank
    with pytest.raises(ConfigError, match="algorithm=dpo needs preference pairs"):
        checked("step_dpo", *command, "mixture.shares={corpus: 1, data: 1}")


def test_the_answer_says_how_many_solutions_gave_a_pair() -> None:
    counts = {"made/items": 20, "made/rows": 15, f"made/rejected/{NO_ALTERNATIVE}": 4, "made/rejected/other": 1}
    run = SimpleNamespace(results={name: as_estimate(value) for name, value in counts.items()})
    assert pairs_of_steps(run) == (
        "15 of 20 solutions with a wrong answer gave a pair of steps; the most frequent reason for rejecting the "
        "others was “no right alternative” (4)."
    )
    assert pairs_of_steps(SimpleNamespace(results={})) is None
