"""Evaluation items in training rows: the arithmetic of shares, short items, scale, the audit."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from support import command_inside, prompt_text, write_pairs

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Pair
from rlhf_lab.data.duplicates import EvaluationItems, Match, read_items

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
    other = "zero " + ITEM.removesuffix(" ten")
    assert EvaluationItems([other, ITEM]).find(ITEM).item == ITEM


def test_a_short_item_counts_only_as_a_whole_turn_and_any_item_in_a_reply():
    items = EvaluationItems(["How are you?"])
    assert items.find("Tell me: how are you today") is None
    assert items.find("how are you") == Match("How are you?", 1.0)
    assert items.find("\n\nHuman: How are you?\n\nAssistant: Fine.\n\nHuman: Good.\n\nAssistant:").share == 1.0
    items = EvaluationItems([prompt_text(ITEM)])
    assert items.find_in(Pair(prompt_text("hi"), "no", f"You asked: {ITEM}")).share == 1.0
    assert items.find_in(Pair(prompt_text("hi"), "no", "yes")) is None
    assert len(EvaluationItems([ITEM, ITEM, "short", "", "  "])) == 2


def test_items_in_a_script_without_spaces_are_found_within_a_text():
    item = "小明有五个苹果，又买了三个，现在一共有多少个？"
    assert EvaluationItems([item]).find(f"题目：{item}答案是八个。") == Match(item, 1.0)
    assert EvaluationItems([item]).find("小明有五本书，又买了两本，现在一共有多少本？") is None


def test_an_item_that_is_there_whole_comes_before_half_of_a_longer_one():
    """The first 12 of 16 words are five of nine 8-grams, .56; the eight words of the short item are its only one."""
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
    start = time.process_time()
    found = [index for index, text in enumerate(texts) if items.find(text)]
    assert found == list(range(0, 1000, 2))
    assert time.process_time() - start < 6  # about 0.6 s on an idle core


def test_files_of_items(tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps({"question": "a b"}) + "\n" + json.dumps({"prompt": "c"}) + "\n")
    assert read_items(str(path)) == ["a b", "c"]
    path.write_text(json.dumps({"text": "a"}) + "\n")
    with pytest.raises(DataError, match="row 1: there is no text in the column prompt or question"):
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
