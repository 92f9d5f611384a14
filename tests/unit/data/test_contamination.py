"""Evaluation items in training rows: the arithmetic of shares, short items, scale, the audit, the curated corpus."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from support import checked, command_inside, planned, prompt_text, write_pairs

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.core.types import Pair
from rlhf_lab.data.contamination import EvaluationItems, Match, read_items
from rlhf_lab.packs.judging.curation.curate import CONTAMINATED
from rlhf_lab.packs.judging.curation.settings import Curate
from rlhf_lab.packs.judging.synthesis.making import reject_duplicates
from rlhf_lab.stages.execute import ensure

ITEM = "one two three four five six seven eight nine ten"  # 10 words: three 8-grams


def test_the_share_is_of_the_items_n_grams():
    items = EvaluationItems([ITEM], share=0.5)
    # the first nine words are two of its three 8-grams
    assert items.find("so: One, two three; four five six seven eight NINE and more") == Match(
        ITEM, pytest.approx(2 / 3)
    )
    # the first eight words are one of three
    assert items.find("one two three four five six seven eight and more") is None
    assert EvaluationItems([ITEM], share=1 / 3).find("one two three four five six seven eight").share == pytest.approx(
        1 / 3
    )
    # one word in the middle changed: none of the three is left
    assert items.find(ITEM.replace("five", "5")) is None


def test_a_short_item_counts_only_as_a_whole_turn():
    items = EvaluationItems(["How are you?"])
    assert items.find("Tell me: how are you today") is None
    assert items.find("how are you") == Match("How are you?", 1.0)
    assert items.find("\n\nHuman: How are you?\n\nAssistant: Fine.\n\nHuman: Good.\n\nAssistant:").share == 1.0


def test_an_item_may_stand_in_a_reply():
    items = EvaluationItems([prompt_text(ITEM)])
    assert items.find_in(Pair(prompt_text("hi"), "no", f"You asked: {ITEM}")).share == 1.0
    assert items.find_in(Pair(prompt_text("hi"), "no", "yes")) is None
    assert len(EvaluationItems([ITEM, ITEM, "short", "", "  "])) == 2


def test_the_item_with_the_largest_share_is_named():
    other = "zero " + ITEM.removesuffix(" ten")
    assert EvaluationItems([other, ITEM]).find(ITEM).item == ITEM


def test_an_item_that_is_there_whole_comes_before_half_of_a_longer_one():
    """Of 16 words the first 12 are five of nine 8-grams, .56; the eight words of the short item are its only one."""
    numbers = [f"w{i}" for i in range(16)]
    short = "one two three four five six seven eight"
    text = f"{' '.join(numbers[:12])} and {short}"
    assert EvaluationItems([" ".join(numbers), short]).find(text) == Match(short, 1.0)


def test_a_hundred_thousand_rows_take_seconds():
    """Time in proportion to the rows' words: 10,000 rows and 1,000 items here, on CPU time."""
    rng = np.random.default_rng(0)
    vocabulary = np.array([f"w{i}" for i in range(5000)])
    texts = [" ".join(row) for row in rng.choice(vocabulary, (10_000, 60))]
    items = EvaluationItems(texts[:1000:2], share=0.5)
    begin = time.process_time()
    found = [number for number, text in enumerate(texts) if items.find(text)]
    assert found == list(range(0, 1000, 2))
    assert time.process_time() - begin < 6  # about 0.6 s on an idle core


def test_files_of_items(tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps({"question": "a b"}) + "\n" + json.dumps({"prompt": "c"}) + "\n")
    assert read_items(str(path)) == ["a b", "c"]
    path.write_text(json.dumps({"text": "a"}) + "\n")
    with pytest.raises(DataError, match="row 1: expected the column prompt or question"):
        read_items(str(path))


def test_the_audit_counts_rows_that_hold_an_item(tmp_path):
    rows = [(f"{ITEM} number {i}" if i < 20 else f"something else {i}", "yes", "no") for i in range(40)]
    data = write_pairs(tmp_path / "pairs.jsonl", rows)
    (tmp_path / "items.jsonl").write_text(json.dumps({"prompt": ITEM}) + "\n")
    words = ("audit", "data=pairs", f"data.path={data}", "data.test_fraction=0.2")
    status, out = command_inside(tmp_path, *words, f"against={tmp_path / 'items.jsonl'}")
    assert status == 0 and "holds an evaluation item" in out
    status, out = command_inside(tmp_path, *words)
    assert status == 0 and "holds an evaluation item" not in out
    status, out = command_inside(tmp_path, *words, "against=nowhere.jsonl")
    assert status == 2 and "there is no such file" in out


def row(prompt: str, chosen: str, rejected: str) -> dict:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, "problem": None}


def test_repeated_rows_of_a_prompt_are_rejected_and_of_another_are_not():
    rows = [row("a", "red green blue", "one"), row("a", "Red, green, blue!", "one"), row("b", "red green blue", "one")]
    rows += [row("a", "red green blue", "one")]
    reject_duplicates(rows, ("chosen", "rejected"), 1.0)
    assert [each["problem"] for each in rows] == [None, "near-duplicate", None, "duplicate"]


def test_the_world_gives_held_out_questions_away_in_longer_conversations(tmp_path):
    """A follow-up of the training split may open with a question that is held out by itself, and answer it."""
    stage = planned(
        "curate", "data=mini_hh_small", "data.train_pairs=400", "data.test_pairs=200", f"outputs={tmp_path}"
    )
    result = ensure(stage, 0)
    kept, rejected = (read_jsonl(stage.folder / name) for name in ("corpus.jsonl", "rejected.jsonl"))
    assert len(kept) + len(rejected) == 400 == result["metrics"]["made/items"]
    assert read_json(stage.folder / "corpus.json")["rejected"][CONTAMINATED] > 0
    held = [each for each in rejected if each["problem"] == CONTAMINATED]
    assert all(each["prompt"] != each["item"] and each["share"] == 1 for each in held)
    items = EvaluationItems((each["item"] for each in held), share=1.0)
    assert all(items.find(each["prompt"]) for each in held)
    assert not any(items.find(each["prompt"]) for each in kept)


def test_settings_and_keys(tmp_path):
    assert checked("curate").algorithm.share == 1.0
    assert Curate().share is None
    with pytest.raises(ConfigError, match=r"share=2\.0 must be above 0 and at most 1"):
        checked("curate", "algorithm.share=2")
    with pytest.raises(ConfigError, match=r"algorithm\.files=nowhere\.jsonl: there is no such file"):
        assert planned("curate", "algorithm.files=[nowhere.jsonl]").settings_key
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps({"prompt": "a"}) + "\n")
    before = planned("curate", f"algorithm.files=[{path}]").settings_key
    path.write_text(json.dumps({"prompt": "b"}) + "\n")
    assert planned("curate", f"algorithm.files=[{path}]").settings_key != before
