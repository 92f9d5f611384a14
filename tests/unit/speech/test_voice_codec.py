"""The codec: what a round trip loses, k-means, files, and streams as audio."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import fft

from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.packs.speech.sound.codec import PERIODICITIES, SIZES, Codec, StreamRenderer, k_means
from rlhf_lab.packs.speech.sound.renderer import render
from rlhf_lab.packs.speech.sound.stream import read_stream, write_stream
from rlhf_lab.packs.speech.sound.voice_frames import SILENCE_DB, Frames, mel
from rlhf_lab.packs.speech.world.delivery import draw_delivery, perform
from rlhf_lab.packs.speech.world.prompts import draw_utterance
from rlhf_lab.packs.speech.world.speech import fitted_codec

CODEC = fitted_codec(SIZES)
SMALL = fitted_codec((32, 32, 32, 32))


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["training voices", "held-out voice"])
def clips(request) -> list[Frames]:
    """Clips on which no codec was fitted: other words, and in the second case another voice."""
    rng = np.random.default_rng(1)
    return [perform(draw_utterance(rng, "test", request.param), draw_delivery(rng, 0.25)) for _ in range(40)]


def mel_spectrum(samples: np.ndarray) -> np.ndarray:
    """Levels in 40 mel bands of windows of 25 ms, dB."""
    windows = np.lib.stride_tricks.sliding_window_view(samples, 400)[::160] * np.hanning(400)
    power = np.abs(fft.rfft(windows, 512, axis=1)) ** 2
    hertz = 700 * (10 ** (np.linspace(mel(60), mel(7800), 42) / 2595) - 1)
    bins = np.linspace(0, 8000, 257)
    rising = (bins - hertz[:-2, None]) / (hertz[1:-1] - hertz[:-2])[:, None]
    falling = (hertz[2:, None] - bins) / (hertz[2:] - hertz[1:-1])[:, None]
    return 10 * np.log10(power @ np.clip(np.minimum(rising, falling), 0, None).T + 1e-8)


def log_spectral_distance(original: np.ndarray, coded: np.ndarray) -> float:
    """Root mean square difference in dB over mel bands, mean over windows within 40 dB of the loudest."""
    first, second = mel_spectrum(original), mel_spectrum(coded)
    audible = first.max(1) > first.max() - 40
    return float(np.sqrt(((first - second)[audible] ** 2).mean(1)).mean())


def pitch_errors(frames: Frames, coded: Frames) -> np.ndarray:
    """Absolute differences in semitones, where both have a pitch."""
    both = frames.voiced_T & coded.voiced_T
    return np.abs(12 * np.log2(frames.f0_T[both] / coded.f0_T[both]))


def test_round_trip_of_frames(clips):
    """Measured: 2.1 and 2.0 dB, .11 semitones (half a step of .45 is at most .225), .75 dB (steps of 3 dB)."""
    coded = [CODEC.frames(CODEC.quantise(clip)) for clip in clips]
    distances = [log_spectral_distance(render(clip), render(code)) for clip, code in zip(clips, coded, strict=True)]
    assert np.mean(distances) < 2.6
    errors = np.concatenate([pitch_errors(clip, code) for clip, code in zip(clips, coded, strict=True)])
    assert errors.mean() < 0.13
    # beyond the range of the codebook, in wild clips, the nearest end is taken
    assert np.quantile(errors, 0.98) <= 0.226
    for clip, code in zip(clips, coded, strict=True):
        assert (clip.voiced_T == code.voiced_T).all()
        loud = clip.energy_T > -48
        assert np.abs(clip.energy_T - code.energy_T)[loud].max() <= 1.51


def test_breathiness_is_rounded_by_ratios():
    """The boundaries of .03, .12, .3, .6 are √(.03·.12) = .06, √(.12·.3) = .190 and √(.3·.6) = .424."""
    stated_T = np.array([0.05, 0.07, 0.18, 0.2, 0.41, 0.43])
    frames = Frames(
        f0_T=np.full(6, 150.0),
        envelope_TD=np.repeat(CODEC.envelopes[:1], 6, axis=0),
        energy_T=np.full(6, -20.0),
        aperiodicity_T=stated_T,
    )
    coded_T = CODEC.frames(CODEC.quantise(frames)).aperiodicity_T
    assert coded_T.tolist() == [0.03, 0.12, 0.12, 0.3, 0.3, 0.6]


def test_round_trip_through_audio(clips):
    """Measured: 2.5 dB; 3 to 4 % of the frames change their voicing."""
    distances, voicing = [], []
    for clip in clips[:15]:
        samples = render(clip)
        codes = CODEC.encode(samples)
        assert codes.shape == (len(clip), 4)
        distances.append(log_spectral_distance(samples, CODEC.decode(codes)))
        voicing.append((CODEC.frames(codes).voiced_T != clip.voiced_T).mean())
    assert np.mean(distances) < 3.2
    assert np.mean(voicing) < 0.08


def test_extreme_frames_have_codes():
    frames = Frames(
        np.array([0.0, 30.0, 900.0, 120.0]),
        np.zeros((4, 20)),
        np.array([SILENCE_DB, 10.0, -53.0, -200.0]),
        np.array([1.0, 0.0, 1.0, 0.1]),
    )
    codes = CODEC.quantise(frames)
    # unvoiced, the lowest and the highest pitch; silence, the loudest and the quietest level, silence
    assert codes[:3, 1].tolist() == [0, 1, 63]
    assert (codes[:, 2] // len(PERIODICITIES)).tolist() == [0, 15, 1, 0]
    assert (codes[:3, 2] % len(PERIODICITIES)).tolist() == [0, 0, 3]


def test_a_pitch_by_hand():
    """Code 21 is 20 steps of .45 semitones, 9 semitones above 70 Hz: 117.7 Hz."""
    frames = CODEC.frames(np.array([[0, 21, 4 * 10 + 1, 0]]))
    assert frames.f0_T[0] == pytest.approx(70 * 2 ** (9 / 12))
    assert frames.energy_T[0] == pytest.approx(-51 + 9 * 3)
    assert frames.aperiodicity_T[0] == 0.12


def test_k_means_finds_clusters():
    rng = np.random.default_rng(0)
    truth = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = np.concatenate([centre + 0.1 * rng.standard_normal((50 * (3 - i), 2)) for i, centre in enumerate(truth)])
    found = k_means(points, 3, np.random.default_rng(0))
    assert found == pytest.approx(truth, abs=0.05)  # the largest cluster first
    # more clusters than distinct points
    assert k_means(np.ones((5, 2)), 3, np.random.default_rng(0)).tolist() == [[1, 1]] * 3


def test_fitting_is_repeatable(clips):
    first, again = Codec.fit(clips, seed=3), Codec.fit(clips, seed=3)
    assert first.fingerprint == again.fingerprint != Codec.fit(clips, seed=4).fingerprint


def test_files(tmp_path, monkeypatch):
    CODEC.save(tmp_path / "codec")
    loaded = Codec.load(tmp_path / "codec")
    assert loaded.sizes == CODEC.sizes
    assert loaded.fingerprint == CODEC.fingerprint
    with pytest.raises(ArtifactError, match=r"none.*codec\.safetensors is not a codec.*save one with"):
        Codec.load(tmp_path / "none")
    (tmp_path / "codec" / "codec.safetensors").write_bytes(b"damaged")
    with pytest.raises(ArtifactError, match="is not a codec"):
        Codec.load(tmp_path / "codec")
    monkeypatch.setattr("rlhf_lab.packs.speech.sound.codec.VERSION", 99)
    CODEC.save(tmp_path)
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match=r"version 99.*Fit it again"):
        Codec.load(tmp_path)


def test_errors(clips):
    with pytest.raises(ValueError, match=r"frame 2, codebook 3: code 64 is outside 0…63"):
        CODEC.decode(np.array([[0, 0, 0, 0], [0, 0, 64, 0]]))
    with pytest.raises(ConfigError, match="provide more clips"):
        Codec.fit([replace(clips[0], energy_T=np.full(len(clips[0]), SILENCE_DB))], seed=0)


# Streams as audio


def test_streams_are_rendered_in_order_and_once(clips, monkeypatch):
    renderer = StreamRenderer(CODEC)
    assert renderer.sizes == (64, 64, 64, 64)
    first, second = (write_stream(CODEC.quantise(clip)) for clip in clips[:2])
    decoded = []
    decode = Codec.decode
    monkeypatch.setattr(Codec, "decode", lambda self, codes: decoded.append(len(codes)) or decode(self, codes))
    audio = renderer.render([first, second, first])
    assert [len(clip.samples_N) for clip in audio] == [640 * len(clips[i]) for i in (0, 1, 0)]
    assert audio[0] is audio[2] is renderer.render([first])[0]
    assert decoded == [len(clips[0]), len(clips[1])]
    assert audio[0].rate == 16_000
    with pytest.raises(ValueError, match="read-only"):
        audio[0].samples_N[0] = 1


def test_what_is_no_stream_is_audio_without_samples():
    responses = ["", "hello", "a1 b.", "a1 b. c. d. a. b99 c. d. a. b. c1 d. a. b. c. d1", "a1 a1"]
    assert [len(clip.samples_N) for clip in StreamRenderer(CODEC).render(responses)] == [0] * 5


def test_the_cache_is_bounded(clips):
    streams = [write_stream(CODEC.quantise(clip)) for clip in clips[:6]]
    renderer = StreamRenderer(CODEC, cached_clips=2)
    kept = renderer.render(streams)
    last, first = renderer.render([streams[5], streams[0]])
    assert last is kept[5]
    assert first is not kept[0]
    assert (first.samples_N == kept[0].samples_N).all()


def test_the_stream_of_two_frames_and_three_codebooks():
    """Codebook k of frame t stands in column t + k: columns (1,·,·) (4,2,·) (·,5,3) (·,·,6)."""
    text = write_stream(np.array([[1, 2, 3], [4, 5, 6]]))
    assert text == "a1 b. c. a4 b2 c. a. b5 c3 a. b. c6"


@pytest.mark.parametrize("codebooks", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("frames", [1, 2, 5, 30])
def test_a_stream_is_read_back(codebooks, frames):
    codes_TK = np.random.default_rng(frames).integers(0, 64, (frames, codebooks))
    text = write_stream(codes_TK)
    assert len(text.split()) == (frames + codebooks - 1) * codebooks
    np.testing.assert_array_equal(read_stream(text, codebooks), codes_TK)


def test_a_stream_that_is_cut_anywhere_has_its_whole_frames():
    codes_TK = np.arange(15).reshape(5, 3)
    words = write_stream(codes_TK).split()
    for length in range(len(words) + 1):
        # frame t is complete with its last code, at position (t + K − 1)·K + K − 1
        full = sum((t + 2) * 3 + 2 < length for t in range(5))
        np.testing.assert_array_equal(read_stream(" ".join(words[:length]), 3), codes_TK[:full])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a1 c. b.", "word 2 of the stream is 'c.'; expected a code of codebook 'b'"),
        ("a1 b2", "word 2 of the stream is 'b2'; expected the empty word b."),
        ("a. b.", "word 1 of the stream is 'a.'; expected a code of codebook 'a'"),
        ("a1 b. a2 b.", "word 4 of the stream is 'b.'; expected a code of codebook 'b'"),
        ("a1 b. a. b2 a3", "word 5 of the stream is 'a3'; expected the empty word a."),
        ("a99999999999999999999", "word 1 of the stream is 'a99999999999999999999'"),
        ("a1 hello", "word 2 of the stream is 'hello'"),
    ],
)
def test_what_is_no_stream_is_refused_by_word(text, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        read_stream(text, 2)


def test_a_clip_without_frames_has_no_stream():
    with pytest.raises(ValueError, match="one or more frames"):
        write_stream(np.zeros((0, 4), dtype=np.int64))
