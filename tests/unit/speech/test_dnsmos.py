"""Opinion scores by DNSMOS: as the package computes them, as a reward, and in place of the true reward."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support import checked
from synthetic_audio import RATE, audio, glide, harmonics, silence, with_noise

from rlhf_lab.core.errors import ConfigError, MissingDependency
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech import preflight
from rlhf_lab.packs.speech.reward_models.clip_pairs import opinion_scores
from rlhf_lab.packs.speech.rewards import dnsmos
from rlhf_lab.packs.speech.rewards.settings import OpinionScore

CLIP = audio(with_noise(harmonics(glide(100, 200)), 20))


@pytest.fixture
def network():
    """The real network; skipped where the extra `speech` is not installed."""
    for library in ("librosa", "onnxruntime", "speechmos"):
        pytest.importorskip(library)


def repeated(seconds):
    return np.tile(CLIP.samples_N, 20)[: int(seconds * RATE)]


def test_the_inputs_of_a_clip():
    """A short clip is repeated to 9.01 s; of 12.5 s, inputs start at 0, 1 and 2 s."""
    (only,) = dnsmos.windows_of(CLIP.samples_N)
    assert len(only) == dnsmos.INPUT_SAMPLES == 144160
    assert (only[:RATE] == only[RATE : 2 * RATE]).all()
    windows = dnsmos.windows_of(np.arange(int(12.5 * RATE), dtype=np.float32))
    assert [int(window_N[0]) for window_N in windows] == [0, RATE, 2 * RATE]
    assert {len(window_N) for window_N in windows} == {dnsmos.INPUT_SAMPLES}
    assert len(dnsmos.windows_of(np.zeros(dnsmos.INPUT_SAMPLES, np.float32))) == 1
    with pytest.raises(ConfigError, match="DNSMOS expects 16000 samples per second, but the clips have 8000"):
        dnsmos.predict([Audio(CLIP.samples_N, 8000)])


def test_scores_are_those_of_the_package(network):
    reference = pytest.importorskip("speechmos.dnsmos")
    clips = [repeated(9.01), repeated(11.2)]
    expected = [reference.run(samples_N, sr=RATE)["p808_mos"] for samples_N in clips]
    found_N = dnsmos.predict([Audio(samples_N, RATE) for samples_N in clips])
    assert found_N == pytest.approx(expected, abs=1e-4)
    assert ((found_N > 1) & (found_N < 5)).all()


def test_a_clip_without_sound_has_the_lowest_score(network):
    empty, quiet = Audio(np.zeros(0, np.float32), RATE), Audio(silence(0.3).astype(np.float32), RATE)
    found_N = dnsmos.predict([empty, CLIP, quiet])
    assert found_N[[0, 2]].tolist() == [1, 1]
    # a score does not depend on the other clips of a batch
    assert found_N[1] == pytest.approx(dnsmos.predict([CLIP])[0], abs=1e-5)


class OneClipEach:
    """A renderer whose responses are numbers of repetitions of a clip. Lists what it renders."""

    def __init__(self):
        self.rendered = []

    def render(self, responses):
        self.rendered += responses
        return [Audio(np.tile(CLIP.samples_N, int(response)), RATE) for response in responses]


def test_the_reward_scores_each_response_once(monkeypatch):
    monkeypatch.setattr(dnsmos, "predict", lambda clips: np.array([clip.seconds for clip in clips]))
    renderer = OneClipEach()
    reward = dnsmos.build(OpinionScore(), SimpleNamespace(data=SimpleNamespace(renderer=renderer)))
    assert reward(["a", "b", "c"], ["2", "1", "2"]).total_N.tolist() == [2, 1, 2]
    assert renderer.rendered == ["2", "1"]
    assert opinion_scores("dnsmos", renderer, ["1", "0"]).tolist() == [1, 0]


@pytest.mark.parametrize(
    "command",
    [["tts_reward", "algorithm.mos=dnsmos"], ["tts_preferences", "reward=dnsmos", "needs.acoustic_rm=null"]],
    ids=["validation", "reward"],
)
def test_missing_libraries_are_reported_before_a_run(monkeypatch, command):
    config = checked(*command)
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name == "speechmos" else object())
    (problem,) = preflight.problems(config)
    assert "rlhf_lab[speech]" in problem and "dnsmos" in problem
    monkeypatch.setattr(preflight, "find_spec", lambda name: object())
    assert preflight.problems(config) == []
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    assert preflight.problems(checked("tts_reward")) == []


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    dnsmos._network.cache_clear()
    with pytest.raises(MissingDependency, match=r"pip install 'rlhf_lab\[speech\]'"):
        dnsmos._network()
    dnsmos._network.cache_clear()
