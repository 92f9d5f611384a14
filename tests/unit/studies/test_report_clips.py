"""Replies that were kept as audio are heard in a report, and nothing else of the disk is put into it."""

import base64

import pytest
from synthetic_runs import add_clips, edit_rows, write_run

from rlhf_lab.reports.report import write_report
from rlhf_lab.results.rundir import read_run
from rlhf_lab.results.samples import pick_samples


@pytest.fixture
def spoken(tmp_path):
    directory = write_run(tmp_path, prompts=4)
    return directory, add_clips(directory)


def sounds(samples):
    responses = [response for prompt in samples["prompts"] for policy in prompt["replies"] for response in policy]
    return [response["sound"] for response in responses if "sound" in response]


def test_a_page_holds_the_audio_of_its_samples(spoken):
    directory, clips = spoken
    found = sounds(pick_samples(read_run(directory), budget=10**6))
    assert len(found) == len(clips) == 10  # two prompts under five policies
    prefix, _, data = found[0].partition(",")
    assert prefix == "data:audio/wav;base64"
    assert base64.b64decode(data) in {clip.read_bytes() for clip in clips}
    assert "<audio controls" in write_report(directory).read_text()


def test_audio_that_is_gone_leaves_the_words(spoken):
    directory, clips = spoken
    for clip in clips:
        clip.unlink()
    samples = pick_samples(read_run(directory), budget=10**6)
    assert not sounds(samples)
    assert samples["prompts"][0]["replies"][0][0]["text"].startswith("Take the train")


@pytest.mark.parametrize("position", ["../secret.wav", "/etc/hostname", "clips/../../secret.wav", "clips/a.txt"])
def test_a_row_cannot_name_another_file(spoken, position):
    directory, _ = spoken
    (directory.parent / "secret.wav").write_bytes(b"secret")
    edit_rows(directory, lambda row: {"clip": position})
    assert not sounds(pick_samples(read_run(directory), budget=10**6))


def test_audio_beyond_the_budget_is_left_out(spoken, monkeypatch):
    directory, clips = spoken
    monkeypatch.setattr("rlhf_lab.results.samples.CLIP_BYTES", clips[0].stat().st_size * 3)
    assert len(sounds(pick_samples(read_run(directory), budget=10**6))) == 3
