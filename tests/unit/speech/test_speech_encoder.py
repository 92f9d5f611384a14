"""A scalar head on a small random Wav2Vec2: forward, backward, frozen, saved, trained on pairs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from synthetic_audio import RATE, audio, tone, with_noise
from transformers import WavLMConfig, WavLMModel

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.media import Audio
from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.packs.speech.reward_models.settings import Wav2Vec2Reward
from rlhf_lab.packs.speech.reward_models.wav2vec2_reward import build, pair_scores
from rlhf_lab.packs.speech.rewards.wav2vec2 import (
    FILE,
    TINY,
    SpeechModel,
    SpeechScorer,
    equal_lengths,
    load_trunk,
    receptive_samples,
)


def scorer(frozen=False):
    generated = SpeechScorer(load_trunk("", seed=0), frozen=frozen)
    with torch.no_grad():  # the head starts at 0, where every clip is worth the same
        generated.head.weight.copy_(torch.linspace(-1, 1, generated.head.in_features)[None])
    return generated


def clip(seconds, seed=0):
    return audio(with_noise(tone(150 + 20 * seed, seconds), 10, seed=seed))


def test_a_score_does_not_depend_on_the_other_clips():
    model = SpeechModel(scorer(), "cpu")
    clips = [clip(0.3), clip(0.5), clip(0.3, seed=1), clip(0.4)]
    together = model.outputs(clips)
    alone = [model.outputs([each])[0] for each in clips]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len({round(score, 4) for score in alone}) == 4


def test_loudness_is_standardised_away():
    model = SpeechModel(scorer(), "cpu")
    loud = clip(0.3)
    quiet = Audio(loud.samples_N * np.float32(0.25), RATE)
    assert model.outputs([quiet]) == pytest.approx(model.outputs([loud]), abs=1e-4)


def test_clips_of_one_length_make_a_batch():
    clips = [clip(seconds) for seconds in (0.3, 0.5, 0.3, 0.3)]
    assert list(equal_lengths(clips, batch_seconds=60)) == [[0, 2, 3], [1]]
    assert list(equal_lengths(clips, batch_seconds=0.6)) == [[0, 2], [3], [1]]
    assert list(equal_lengths(clips, batch_seconds=0.1)) == [[0], [2], [3], [1]]


def test_what_is_too_short_or_silent_has_the_stated_score():
    model = SpeechModel(scorer(), "cpu")
    shortest = receptive_samples(model.scorer.trunk)
    assert shortest == 20 + 15 * 10 + 7 * 80  # kernels 20, 16, 8 with strides 10, 8
    clips = [Audio(np.zeros(n, dtype=np.float32), RATE) for n in (0, 4000)]
    clips += [Audio(clip(0.3).samples_N[:n], RATE) for n in (shortest - 1, shortest)]
    assert model(clips, silent=-5.0)[:3].tolist() == [-5, -5, -5]
    assert model(clips, silent=-5.0)[3] != -5


def test_another_sampling_rate_is_refused():
    with pytest.raises(ConfigError, match="expects 16000 samples per second, but the clips have 8000"):
        SpeechModel(scorer(), "cpu").outputs([Audio(clip(0.3).samples_N, 8000)])


def test_gradients_reach_the_trunk_unless_it_is_frozen():
    pairs = [[clip(0.3), clip(0.4, 1)], [clip(0.4, 2), clip(0.3, 3)]]
    for frozen in (False, True):
        model = scorer(frozen)
        chosen_B, rejected_B = pair_scores(model, pairs, "cpu", 60.0)
        one_by_one = SpeechModel(model, "cpu").outputs([each for pair in pairs for each in pair])
        got = torch.stack([chosen_B, rejected_B], dim=1).flatten().detach().numpy()
        assert got == pytest.approx(one_by_one, abs=1e-5)
        (-torch.nn.functional.logsigmoid(chosen_B - rejected_B)).sum().backward()
        reached = [parameter.grad is not None and bool(parameter.grad.any()) for parameter in model.trunk.parameters()]
        assert any(reached) != frozen
        assert model.head.weight.grad.any()


def test_a_saved_model_scores_alike(tmp_path):
    clips = [clip(0.3), clip(0.4, 1), clip(0.3, 2)]
    model = SpeechModel(scorer(), "cpu").with_scale(clips)
    scores = model(clips, -3.0)
    assert scores.mean() == pytest.approx(0, abs=1e-6)
    assert scores.std() == pytest.approx(1, abs=1e-6)
    model.save(tmp_path)
    assert (tmp_path / FILE).is_file()
    loaded = SpeechModel.load(tmp_path, "wav2vec2", "cpu", 60.0)
    assert loaded(clips, -3.0) == pytest.approx(scores, abs=1e-6)


def test_silent_clips_do_not_move_the_scale():
    model = SpeechModel(scorer(), "cpu")
    clips = [clip(0.3), clip(0.4, 1), clip(0.3, 2)]
    silence = [Audio(np.zeros(n, dtype=np.float32), RATE) for n in (4000, 4800, 5600)]
    assert np.isfinite(model.outputs(silence)).all()
    scaled = model.with_scale([*clips, *silence])
    assert (scaled.mean, scaled.sd) == (model.with_scale(clips).mean, model.with_scale(clips).sd)
    for too_few in ([], silence, [*silence, clips[0]]):
        with pytest.raises(ConfigError, match=f"{len(too_few) % 3} of {len(too_few)} training clips have sound"):
            model.with_scale(too_few)


def test_a_trunk_in_half_precision_is_read_as_float32(tmp_path):
    load_trunk("", 0).half().save_pretrained(tmp_path)
    scorer = SpeechScorer(load_trunk(str(tmp_path), 0), frozen=True)
    assert scorer(torch.ones(1, 4000)).dtype == torch.float32


def test_a_folder_that_is_no_trunk(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm\.trunk=.* cannot be read as a Wav2Vec2 model"):
        load_trunk(str(tmp_path), seed=0)


class Noises:
    """A reply "snr seed" is a tone with noise; with a seed below `short`, it is too short for the model."""

    sizes = (8,)

    def __init__(self, short: int = 0):
        self.short = short

    def render(self, responses):
        clips = []
        for response in responses:
            snr, seed = map(int, response.split())
            clip = audio(with_noise(tone(150, 0.2), snr, seed=seed))
            clips.append(Audio(clip.samples_N[:100], RATE) if seed < self.short else clip)
        return clips


def run_of(corpus, directory, log=lambda step, **row: None):
    run = SimpleNamespace(data=corpus, directory=directory, device="cpu", notes=[], log=log)
    run.note, run.seed = lambda text: None, lambda purpose: 3
    return run


def test_pairs_with_clips_that_are_too_short_are_left_out(tmp_path):
    """Of three training pairs one is left out, and the model is trained on two. Batches of no pairs would never end."""
    pairs = [Pair(f"p{i}", f"30 {i}", f"-5 {i}", {}) for i in range(5)]
    settings = Wav2Vec2Reward(epochs=1, batch_size=4)
    corpus = Corpus("toy", pairs[:3], pairs[3:], "", renderer=Noises(short=1))
    assert build(settings, run_of(corpus, tmp_path)).finish().metrics["pairs"] == 2
    for train, counted in ((pairs[:2], 2), ([], 0)):
        training = build(settings, run_of(Corpus("toy", train, pairs[2:], "", renderer=Noises(short=9)), tmp_path))
        with pytest.raises(ConfigError, match=f"none of {counted} training pairs has two clips with the 730 samples"):
            training.finish()


def test_training_learns_to_tell_noise_from_tones(tmp_path):
    pairs = [Pair(f"p{i}", f"30 {i}", f"-5 {i + 100}", {"gold_chosen": 1.0, "gold_rejected": 0.0}) for i in range(24)]
    corpus = Corpus("toy", pairs[:16], pairs[16:], "", renderer=Noises())
    logged = []
    run = run_of(corpus, tmp_path, log=lambda step, **row: logged.append(row))
    settings = Wav2Vec2Reward(epochs=4, batch_size=4, lr=1e-3, head_lr=1e-2)
    metrics = build(settings, run).finish().metrics
    assert logged[0]["loss"] > logged[-1]["loss"]
    assert metrics["accuracy"].mean == 1
    assert metrics["accuracy/truth"].mean == 1
    assert metrics["parameters/trained"] == metrics["parameters"] > 10_000
    model = SpeechModel.load(tmp_path, "wav2vec2", "cpu", 60.0)
    clear, noisy = model(corpus.renderer.render(["30 1", "-5 2"]), -3.0)
    assert clear > noisy


def test_a_trunk_of_another_architecture_is_refused(tmp_path):
    """Its weights would be read where the names agree, and the others would be random."""
    WavLMModel(WavLMConfig(**TINY)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="its model_type is wavlm; expected wav2vec2"):
        load_trunk(str(tmp_path), seed=0)
