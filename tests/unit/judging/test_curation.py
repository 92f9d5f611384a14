"""Curated corpora: near-duplicates, evaluation items in the rows of the simulated world, settings and keys."""

from __future__ import annotations

import json

import pytest
from support import checked, planned

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.data.duplicates import EvaluationItems
from rlhf_lab.packs.judging.curation.curate import CONTAMINATED
from rlhf_lab.packs.judging.curation.settings import Curate
from rlhf_lab.packs.judging.synthesis.making import reject_duplicates
from rlhf_lab.stages.execute import ensure


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
    kept, rejected = (read_jsonl(stage.directory / name) for name in ("corpus.jsonl", "rejected.jsonl"))
    assert len(kept) + len(rejected) == 400 == result["metrics"]["made/items"]
    assert read_json(stage.directory / "corpus.json")["rejected"][CONTAMINATED] > 0
    model_copies = [each for each in rejected if each["problem"] == CONTAMINATED]
    assert all(each["prompt"] != each["item"] and each["share"] == 1 for each in model_copies)
    items = EvaluationItems((each["item"] for each in model_copies), share=1.0)
    assert all(items.find(each["prompt"]) for each in model_copies)
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
