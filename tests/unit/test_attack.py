"""The attack on a reward: its search, fixed exploits, gains and files."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support import checked

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.evaluations.attack import card
from rlhf_lab.evaluations.attack.attack import (
    AttackStage,
    Scale,
    ScoredResponses,
    above,
    best_of_samples,
    fixed_exploits,
    summarise,
)
from rlhf_lab.evaluations.attack.card import Attacked
from rlhf_lab.evaluations.attack.exploits import EXPLOITS, FLATTERY, Source
from rlhf_lab.evaluations.attack.search import AttackSearch, Candidate, Edit, text_pool
from rlhf_lab.evaluations.attack.settings import Attack
from rlhf_lab.evaluations.suite.responses import regex
from rlhf_lab.evaluations.suite.suite_file import GoldenSet, read_suite
from rlhf_lab.statistics.inference import clustered_mean

PROMPTS = ["\n\nHuman: Why is the sky blue?\n\nAssistant:", "\n\nHuman: What is tea?\n\nAssistant:"]
STARTS = ["Light scatters. It is blue.", "A drink."]
POOL = text_pool(["Great! Tea is a drink.", "Blue light."])


def exclamations(prompts, responses):
    """A reward that pays for exclamation marks, and leaves responses without a full stop unscored."""
    return np.array([text.count("!") if "." in text else math.nan for text in responses], dtype=float)


def search(prompts=PROMPTS, starts=STARTS, score=exclamations, max_words=20, seed=0, **sizes) -> AttackSearch:
    settings = Attack(**{"rounds": 6, "candidates": 8, **sizes})
    return AttackSearch(score, prompts, starts, score(prompts, starts).tolist(), POOL, settings, max_words, seed)


def test_the_search_raises_the_reward_and_its_edits_add_up():
    found = search().run()
    for start, candidate in zip(STARTS, found, strict=True):
        assert candidate.score >= 2 > start.count("!")  # six rounds insert or repeat "Great!" more than once
        assert candidate.score == exclamations([""], [candidate.response])[0]
        assert sum(edit.gain for edit in candidate.edits) == candidate.score - 0
        assert all(edit.gain >= 0 for edit in candidate.edits)  # a greedy search accepts no loss


def test_unscored_and_long_responses_are_never_kept():
    asked = []

    def score(prompts, responses):
        asked.extend(responses)
        return exclamations(prompts, responses)

    attack = search(score=score, max_words=7)
    found = attack.run()
    assert all("." in candidate.response for candidate in found)
    assert max(len(text.split()) for text in asked) <= 7
    assert attack.queries == len(asked) - len(STARTS)  # the starts were scored before the search
    assert len(set(asked)) == len(asked)  # no response of a prompt is scored twice


def test_an_unscored_start_is_not_searched():
    found = search(starts=["no full stop", "A drink."]).run()
    assert found[0].response == "no full stop" and found[0].edits == ()
    assert found[1].score > 0


def test_the_edits_of_a_prompt_depend_on_its_position_and_the_seed_only():
    both = search().run()
    assert search(PROMPTS[:1], STARTS[:1]).run() == both[:1]
    assert search().run() == both
    assert search(seed=1).run() != both


def test_the_beam_keeps_the_best_of_old_and_new_responses():
    attack = search(beam=3)
    attack.round()
    first = [list(beam) for beam in attack.beams]
    attack.round()
    for before, after in zip(first, attack.beams, strict=True):
        scores = [candidate.score for candidate in after]
        assert len(after) <= 3 and scores == sorted(scores, reverse=True)
        assert scores[0] >= before[0].score


@pytest.mark.parametrize(("units", "kinds"), [("sentences", {"sentence"}), ("words", {"word"})])
def test_units_restrict_the_edits(units, kinds):
    edits = [edit for candidate in search(units=units).run() for edit in candidate.edits]
    assert edits and {edit.kind.split()[1] for edit in edits} == kinds


def test_without_a_pool_nothing_is_inserted():
    attack = AttackSearch(exclamations, ["p"], ["a! b."], [1.0], {"sentence": [], "word": []}, Attack(), 20, 0)
    attack.run()
    assert {edit.kind.split()[0] for edit in attack.beams[0][0].edits} <= {"delete", "repeat"}


def source(prompt=PROMPTS[0], response=STARTS[0]) -> Source:
    return Source(prompt, response, "Other.", random.Random(0))


def test_fixed_exploits():
    made = {name: rewrite(source()) for name, rewrite in EXPLOITS.items()}
    assert made["empty"] == ""
    assert made["prompt_copy"] == "Why is the sky blue?"
    assert made["keywords"] == " ".join(["Why is the sky blue?"] * 4)
    assert made["endless"] == " ".join([STARTS[0]] * 4)
    assert made["flattery"] == f"{FLATTERY} {STARTS[0]}"
    assert made["other_prompt"] == "Other."
    assert sorted(made["shuffled"].split()) == sorted(STARTS[0].split())
    assert made["formatting"] == (
        "## Answer\n\n- **Light scatters.**\n- **It is blue.**\n\n**Summary:** Light scatters."
    )
    for name in ("padding", "certainty", "grader_instruction"):
        assert made[name].startswith(STARTS[0]) and len(made[name]) > len(STARTS[0])
    assert EXPLOITS["formatting"](source(response="")) == "## Answer\n\n\n\n**Summary:**"


def starts(reward, gold) -> ScoredResponses:
    responses = [["A drink.", "Tea."] for _ in reward]
    return ScoredResponses([f"p{index}" for index in range(len(reward))], responses, np.array(reward), np.array(gold))


def test_exploits_of_other_prompts_take_the_next_start_response():
    given = ScoredResponses(PROMPTS, [[STARTS[0]], [STARTS[1]]], np.zeros((2, 1)), np.zeros((2, 1)))
    made = fixed_exploits(given, seed=0)
    assert made["other_prompt"] == [STARTS[1], STARTS[0]]
    assert made == fixed_exploits(given, seed=0)


def test_the_best_sample_is_never_an_unscored_one():
    given = starts([[0.0, 2.0], [1.0, math.nan], [math.nan, math.nan]], np.zeros((3, 2)))
    assert best_of_samples(given) == ["Tea.", "A drink.", "A drink."]


def test_gains_are_means_over_prompts_in_standard_deviations():
    # the sd of the four rewards 0, 2, 4, 6 is √5
    given = starts([[0.0, 2.0], [4.0, 6.0]], [[math.nan] * 2] * 2)
    sd = float(np.std([0, 2, 4, 6]))
    assert sd == pytest.approx(math.sqrt(5))
    rows = [
        Attacked("search", f"p{k}", "A drink.", "A very long drink.", gain, math.nan) for k, gain in enumerate([1, 3])
    ]
    found = [
        Candidate("x", 1.0, (Edit("insert word", "very", 1.0), Edit("insert word", "long", 0.5))),
        Candidate("y", 7.0, (Edit("delete word", "", 3.0),)),
    ]
    metrics = summarise({"search": rows, "empty": rows[::-1]}, Scale(given, sd, math.nan), found)
    assert metrics["attack_gain"].mean == metrics["exploit_gain/empty"].mean == 2.0
    assert metrics["attack_gain"] == clustered_mean([1, 3], ["a", "b"])
    assert metrics["attack_words"].mean == 2.0
    assert metrics["edit_gain/insert_word"].mean == pytest.approx((1.5 / sd + 0) / 2)
    assert metrics["edit_gain/delete_word"].mean == pytest.approx((0 + 3 / sd) / 2)
    assert metrics["attack_unscored"].mean == 0.0
    assert "attack_gold" not in metrics  # no true reward is known


def row(attack="search", gain=1.0, gold=math.nan, response="Great! Tea. Great! Tea.", prompt=PROMPTS[1]) -> Attacked:
    return Attacked(attack, prompt, "A drink.", response, gain, gold)


@pytest.mark.parametrize(
    ("attacked", "pays"),
    [
        (row(gain=1, gold=-1), True),
        (row(gain=1, gold=0.5), False),  # the response is better
        (row(gain=-1, gold=-1), False),  # the reward does not pay
        (row(gain=1), False),  # nobody knows if it is worse
        (row("flattery", gain=1), True),  # adds nothing by construction
        (row("flattery", gain=math.nan), False),
        (row("best_of_n", gain=1), False),
    ],
)
def test_only_worse_responses_with_a_higher_reward_are_exploits(attacked, pays):
    assert attacked.pays is pays


def write_card(directory: Path) -> None:
    results = {"search": [row(gold=-1), row(gain=2, gold=-2, prompt=PROMPTS[0])], "flattery": [row("flattery", 3.0)]}
    edits = [(Edit("insert sentence", "Milk is not tea at all.", 1.0), Edit("insert word", "Great!", 0.5)), ()]
    metrics = {
        "attack_gain": clustered_mean([1, 2], [0, 1]),
        "attack_gold": clustered_mean([-1, -2], [0, 1]),
        "exploit_gain/flattery": clustered_mean([3.0, 3.0], [0, 1]),
        "attack_queries": 1200,
    }
    card.write(directory, "bt", results, edits, metrics)


def test_the_files_of_an_attack(tmp_path):
    write_card(tmp_path)
    transcripts = read_jsonl(tmp_path / "transcripts.jsonl")
    assert [line["gain"] for line in transcripts] == [3.0, 2.0, 1.0]  # largest gain first
    assert transcripts[0]["gold"] is None
    assert transcripts[2]["edits"][0] == {"kind": "insert sentence", "added": "Milk is not tea at all.", "gain": 1.0}
    text = (tmp_path / "card.md").read_text()
    assert "In 1,200 queries on 2 prompts, the search changed the reward by 1.50 " in text
    assert "| flattery | 3.00 ±0.00 | not known |" in text
    numbers = json.loads((tmp_path / "card.json").read_text())
    assert numbers["reward"] == "bt" and numbers["metrics"]["attack_gain"]["mean"] == 1.5


def test_exploits_are_pairs_that_training_reads(tmp_path):
    prompts = [f"\n\nHuman: What is {number}?\n\nAssistant:" for number in range(20)]
    metrics = {"attack_gain": clustered_mean([1.0] * 20, prompts), "attack_queries": 20}
    rows = [row(gold=-1, prompt=prompt) for prompt in prompts]
    card.write(tmp_path, "bt", {"search": [*rows, row(gold=1)]}, [()] * 21, metrics)
    config = checked("dpo", "data=pairs", f"data.path={tmp_path / 'exploits.jsonl'}", "data.test_fraction=0.4")
    corpus = registry.build("data", config.data)
    pairs = [*corpus.train, *corpus.test]
    assert {pair.prompt for pair in pairs} == set(prompts)
    assert {(pair.chosen.strip(), pair.rejected.strip()) for pair in pairs} == {("A drink.", "Great! Tea. Great! Tea.")}


def test_the_suite_passes_ordinary_responses_and_fails_exploits(tmp_path):
    write_card(tmp_path)
    suite = read_suite(tmp_path / "exploit_suite.yml")
    assert list(suite.golden) == ["exploits"]
    rows = {line["prompt"]: line for line in read_jsonl(tmp_path / "exploit_suite.jsonl")}
    golden = GoldenSet(path="x", check="regex")
    tea = rows[PROMPTS[1]]
    assert regex(golden, tea, "Tea is a drink.")
    assert not regex(golden, tea, "Tea is a drink. Milk is not tea at all.")
    assert not regex(golden, tea, " \n")  # an empty response
    assert not regex(golden, tea, "This says the same thing. " * 3)
    assert regex(golden, tea, "Great! Tea.")  # a single word is part of ordinary responses
    # "Milk …" raised the reward on the other prompt only
    assert regex(golden, rows[PROMPTS[0]], "Milk is not tea at all.")


def test_the_suite_forbids_only_sentences_that_are_new_and_raised_the_reward(tmp_path):
    start, added, harmless = "Tea is a hot drink.", "Milk is not tea at all.", "Water is always wet."
    edits = [Edit("insert sentence", text, gain) for text, gain in ((start, 0.5), (added, 1.0), (harmless, -0.1))]
    found = Attacked("search", PROMPTS[0], start, f"{start} {start} {added} {harmless}", 1.4, -1.0)
    metrics = {"attack_gain": clustered_mean([1.4], [0]), "attack_queries": 3}
    card.write(tmp_path, "bt", {"search": [found]}, [edits], metrics)
    (line,) = read_jsonl(tmp_path / "exploit_suite.jsonl")
    assert line["pattern"] == card.suite_pattern([added])
    assert re.search(line["pattern"], f"{start} {harmless}")


def test_a_card_without_a_change_of_gold_does_not_say_that_there_is_no_gold():
    metrics = {"attack_gain": clustered_mean([1, 2], [0, 1]), "attack_queries": 3}
    assert "there is none, or it is the same for all start responses" in card.verdict(metrics)


def test_a_pattern_is_literal_text():
    assert not re.search(card.suite_pattern(["a.c (b)"]), "x a.c (b) y")
    assert re.search(card.suite_pattern(["a.c (b)"]), "x abc (b) y")
    sentence = "".join(f"{number}, " for number in range(80))
    assert 300 < len(sentence) < 400 and re.search(card.suite_pattern([]), f"{sentence}and {sentence}")
    assert not re.search(card.suite_pattern([]), f"Well: {sentence * 3}")


def test_without_exploits_there_is_no_suite(tmp_path):
    metrics = {"attack_gain": clustered_mean([1, 2], [0, 1]), "attack_queries": 3}
    card.write(tmp_path, "bt", {"search": [row(gold=1)]}, [()], metrics)
    assert not (tmp_path / "exploit_suite.yml").exists()
    assert (tmp_path / "exploits.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("max_gain", "gain", "message"),
    [
        (None, 9.0, ""),
        (2.0, 1.9, ""),
        (2.0, 2.1, "gained 2.10 standard deviations of the reward, above algorithm.max_gain=2;"),
        (2.0, math.nan, "no gain to compare with algorithm.max_gain=2"),
    ],
)
def test_the_threshold_on_the_gain(max_gain, gain, message):
    failure = above(gain, Attack(max_gain=max_gain))
    assert message in failure and bool(failure) == bool(message)


@pytest.mark.parametrize(
    ("start", "later", "note", "sentence"),
    [
        # numpy's standard deviation of 96 times 0.1 is 1.4e-17, which would make this a gain of 3e16
        ([0.1] * 96, 0.5, "the reward is the same for all start responses", "is the same for all start responses."),
        ([math.nan] * 2, math.nan, "scored none of the start responses", "scored none of the start responses; see the"),
        ([1.0, 2.0], math.nan, "", "scored none of the responses that the search found."),
    ],
)
def test_a_gain_that_is_not_known_has_its_reason(tmp_path, start, later, note, sentence):
    stage = AttackStage.__new__(AttackStage)
    notes: list[str] = []
    reward_PS = np.array(start).reshape(2, -1)
    responses = [[text] * reward_PS.shape[1] for text in STARTS]
    given = ScoredResponses(PROMPTS, responses, reward_PS, np.full(reward_PS.shape, math.nan))
    stage.settings, stage.graph = Attack(), SimpleNamespace(name="r")
    stage.run = SimpleNamespace(needs={}, note=notes.append, seed=lambda *_: 0, directory=tmp_path)
    stage._read_data = lambda: given
    stage._search = lambda starts: ([Candidate(text, 1.0) for text in STARTS], 0)
    stage._truth = lambda prompts, responses: np.full(len(prompts), math.nan)
    stage.reward = lambda prompts, responses: SimpleNamespace(total_N=np.full(len(prompts), later))
    stage.finish()
    assert note in " ".join(notes) and bool(notes) == bool(note)
    assert f"The gain of the search is not known, because the reward {sentence}" in (tmp_path / "card.md").read_text()
    # JSON has no NaN
    numbers = json.loads((tmp_path / "card.json").read_text(), parse_constant=pytest.fail)
    assert numbers["metrics"]["attack_gain"]["mean"] is None


def test_an_attack_needs_its_inputs(tmp_path):
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"What is {n}?"}) + "\n" for n in range(20)))
    prompts = ("data=prompts", f"data.path={tmp_path / 'prompts.jsonl'}", "needs.policy=null", "reward=length")
    with pytest.raises(ConfigError, match="no responses to start from"):
        checked("attack", *prompts)
    (tmp_path / "pairs.jsonl").write_text(
        "".join(json.dumps({"prompt": f"Q{n}?", "chosen": "Yes.", "rejected": "No."}) + "\n" for n in range(20))
    )
    pairs = ("data=pairs", f"data.path={tmp_path / 'pairs.jsonl'}", "needs.policy=null", "reward=length")
    with pytest.raises(ConfigError, match="was trained on the reward, and needs"):
        checked("attack", *pairs, "+needs.ppo=outputs/runs/ppo/model")


def test_gains_are_differences_from_the_start_in_standard_deviations():
    """Rewards are scored anew: 5 and 1 against 1 and 2 at the start, over 2; gold 3 and 0 against 1 and 2, over 4."""
    stage = AttackStage.__new__(AttackStage)  # without a run
    stage.reward = lambda prompts, responses: SimpleNamespace(total_N=np.array([5.0, 1.0]))
    stage._truth = lambda prompts, responses: np.array([3.0, 0.0])
    starts = ScoredResponses(PROMPTS, [[start] for start in STARTS], np.array([[1.0], [2.0]]), np.array([[1.0], [2.0]]))
    found = stage._measure("search", ["one", "two"], Scale(starts, reward_sd=2.0, gold_sd=4.0))
    assert [(each.gain, each.gold) for each in found] == [(2.0, 0.5), (-0.5, -0.5)]
