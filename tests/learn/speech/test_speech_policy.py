"""Rounds of DPO on codec tokens at a tiny size: what is measured of clips comes out, and clips can be heard."""

from __future__ import annotations

import pytest
import sizes
from support import checked

from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.packs.speech.sound.stream import read_stream
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


@pytest.mark.slow
def test_each_codebook_by_itself_trains_another_policy(directory, stage):
    other = built(directory, "algorithm.logps=per_codebook")
    assert other.key != stage.key and other.needs["policy"].key == stage.needs["policy"].key
    rounds = [read_json(part.directory / "rounds" / "round_1.json") for part in (stage, other)]
    assert rounds[0]["pairs"] == rounds[1]["pairs"], "the first round's clips are drawn before anything is trained"
    texts = [[row["response"] for row in read_jsonl(part.directory / "evaluation.jsonl")] for part in (stage, other)]
    assert texts[0] != texts[1]


@pytest.mark.slow
def test_no_clip_is_shorter_than_the_model_allows(directory):
    smallest = built(directory, "model.min_frames=7")
    rows = read_jsonl(smallest.directory / "evaluation.jsonl")
    assert min(len(read_stream(row["response"], 4)) for row in rows if row["ended"]) >= 7
