"""Clips that an evaluation of speech keeps for listening."""

import numpy as np
import pytest

from rlhf_lab.core.media import Audio
from rlhf_lab.evaluations.clips import write_clips


class Tones:
    """A renderer of replies that are numbers of samples."""

    sizes = (2,)

    def render(self, responses):
        tones = [0.3 * np.sin(2 * np.pi * 220 * np.arange(int(text)) / 16_000) for text in responses]
        return [Audio(samples_N.astype(np.float32), 16_000) for samples_N in tones]

    def write(self, path, audio):
        path.write_text(f"{audio.seconds}")


def row(policy, prompt, sample, samples=8000):
    return {"policy": policy, "prompt_id": prompt, "sample_id": sample, "response": str(samples)}


def test_the_first_sample_of_the_first_prompts_is_kept_if_it_is_audio(tmp_path):
    rows = [row("step 1", prompt, sample) for prompt in range(3) for sample in range(2)]
    write_clips(rows, Tones(), tmp_path, prompts=2)
    assert [r.get("clip") for r in rows] == ["clips/step_1-0.wav", None, "clips/step_1-1.wav", None, None, None]
    assert sorted(path.name for path in (tmp_path / "clips").iterdir()) == ["step_1-0.wav", "step_1-1.wav"]
    assert float((tmp_path / "clips/step_1-0.wav").read_text()) == pytest.approx(0.5)
    rows = [row("SFT", 0, 0, samples=0), row("SFT", 1, 0)]
    write_clips(rows, Tones(), tmp_path, prompts=2)
    assert "clip" not in rows[0] and rows[1]["clip"] == "clips/SFT-1.wav"


def test_a_name_of_a_policy_cannot_leave_the_folder(tmp_path):
    rows = [row("../../etc/x", 0, 0)]
    write_clips(rows, Tones(), tmp_path, prompts=1)
    assert rows[0]["clip"] == "clips/_etc_x-0.wav"
    assert (tmp_path / rows[0]["clip"]).is_file()
