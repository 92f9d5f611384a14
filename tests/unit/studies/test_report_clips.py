"""Replies that were kept as audio are heard in a report, and nothing else of the disk is put into it."""

import base64
import json

import pytest
from synthetic_runs import add_clips, write_run

from rlhf_lab.reports.report import write_report
from rlhf_lab.results.rundir import read_run
from rlhf_lab.results.samples import pick_samples


@pytest.fixture
def spoken(tmp_path):
    folder = write_run(tmp_path, prompts=4)
    return folder, add_clips(folder)


def sounds(samples):
    replies = [reply for prompt in samples["prompts"] for policy in prompt["replies"] for reply in policy]
    return [reply["sound"] for reply in replies if "sound" in reply]


def test_a_page_holds_the_audio_of_its_samples(spoken):
    folder, clips = spoken
    found = sounds(pick_samples(read_run(folder), budget=10**6))
    assert len(found) == len(clips) == 10  # two prompts under five policies
    prefix, _, data = found[0].partition(",")
    assert prefix == "data:audio/wav;base64"
    assert base64.b64decode(data) in {clip.read_bytes() for clip in clips}
    assert "<audio controls" in write_report(folder).read_text()


def test_audio_that_is_gone_leaves_the_words(spoken):
    folder, clips = spoken
    for clip in clips:
        clip.unlink()
    samples = pick_samples(read_run(folder), budget=10**6)
    assert not sounds(samples)
    assert samples["prompts"][0]["replies"][0][0]["text"].startswith("Take the train")


@pytest.mark.parametrize("place", ["../secret.wav", "/etc/hostname", "clips/../../secret.wav", "clips/a.txt"])
def test_a_row_cannot_name_another_file(spoken, place):
    folder, _ = spoken
    (folder.parent / "secret.wav").write_bytes(b"secret")
    file = folder / "evaluation.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row | {"clip": place}) + "\n" for row in rows))
    assert not sounds(pick_samples(read_run(folder), budget=10**6))


def test_audio_beyond_the_budget_is_left_out(spoken, monkeypatch):
    folder, clips = spoken
    monkeypatch.setattr("rlhf_lab.results.samples.CLIP_BYTES", clips[0].stat().st_size * 3)
    assert len(sounds(pick_samples(read_run(folder), budget=10**6))) == 3
