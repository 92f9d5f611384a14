"""Rounds of DPO on codec tokens at a tiny size: what is measured of clips comes out, and clips can be heard."""

from __future__ import annotations

import pytest
import sizes
from support import checked

from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.execute import execute


def built(directory, *overrides: str) -> artifacts.Stage:
    config = checked(
        "tts_dpo", *sizes.overrides("tts_dpo"), "evaluation.prompts=12", *overrides, f"outputs={directory}"
    )
    stage = artifacts.plan(config, "tts_dpo")
    for part in stage.upstream():
        execute(part)
    return stage


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("speech")


@pytest.fixture(scope="module")
def stage(directory):
    return built(directory)


@pytest.mark.slow
def test_gold_proxy_and_phone_errors_come_by_category_with_intervals(stage):
    last = read_json(stage.directory / "result.json")["policies"][-1]["metrics"]
    assert {"gold", "proxy", "phone_error", "audio_seconds", "gold/new_voice", "proxy/new_voice"} <= last.keys()
    rows = [row for row in read_jsonl(stage.directory / "evaluation.jsonl") if row["policy"] == "iteration 2"]
    for category in {row["category"] for row in rows}:
        golds = [row["gold"] for row in rows if row["category"] == category]
        estimate = last[f"gold/{category}"]
        assert estimate["mean"] == pytest.approx(sum(golds) / len(golds)) and estimate["n"] == len(golds)
        if estimate["clusters"] > 1:  # one prompt has no interval
            assert estimate["low"] <= estimate["mean"] <= estimate["high"]
