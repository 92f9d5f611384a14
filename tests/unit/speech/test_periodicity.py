"""F0 and harmonics-to-noise ratio on sounds whose F0 and noise are known, and against Praat where it is installed."""

import numpy as np
import pytest
from synthetic_audio import RATE, audio, glide, harmonics, silence, tone, with_noise

from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.frame_grid import first_start, frames
from rlhf_lab.packs.speech.sound.periodicity import PitchTracking, periodicity

RATIOS = (0, 2, 5, 10, 15, 20, 25)


@pytest.mark.parametrize("f0", [80, 97.3, 121.7, 180, 233.3, 310, 440, 490])
def test_hnr_is_the_signal_to_noise_ratio(f0):
    """Within 1 dB at 0–25 dB, and monotone."""
    measured = [periodicity(audio(with_noise(tone(f0), snr))).mean_hnr for snr in RATIOS]
    assert np.abs(np.subtract(measured, RATIOS)).max() < 1
    assert (np.diff([*measured, periodicity(audio(tone(f0))).mean_hnr]) > 0).all()


@pytest.mark.parametrize("f0", [80, 97.3, 121.7, 180, 233.3, 310, 440, 490])
@pytest.mark.parametrize("snr", [300, 10])
def test_f0_of_a_tone(f0, snr):
    """Within 1 % in every frame, those at the clip's ends included; .2 % without noise."""
    tracked = periodicity(audio(with_noise(tone(f0), snr)))
    error_T = np.abs(tracked.f0_T / f0 - 1)
    assert tracked.voiced_T.all() and len(error_T) == 100
    assert error_T.max() < (0.002 if snr > 100 else 0.01)


@pytest.mark.parametrize(("low", "high"), [(100, 200), (300, 120), (90, 360)])
def test_f0_of_a_glide(low, high):
    """One or two octaves in a second: within 1 % of F0 at the frames' centres."""
    f0_N = glide(low, high)
    tracked = periodicity(audio(harmonics(f0_N)))
    centres_T = ((np.arange(100) + 0.5) * 0.01 * RATE).astype(int)
    assert np.abs(tracked.f0_T / f0_N[centres_T] - 1).max() < 0.01


def test_a_strong_second_harmonic_is_no_octave_jump():
    """Single frames of this sound are nearer to 240 Hz; the path stays at 120."""
    time_N = np.arange(RATE) / RATE
    balance_N = 0.5 + 0.48 * np.sin(2 * np.pi * 3 * time_N)
    sound_N = (1 - balance_N) * np.sin(2 * np.pi * 120 * time_N) + balance_N * np.sin(2 * np.pi * 240 * time_N)
    tracked = periodicity(audio(sound_N))
    assert np.abs(tracked.f0_T / 120 - 1).max() < 0.02


def test_noise_and_silence_are_unvoiced():
    noise_N = np.random.default_rng(0).standard_normal(2 * RATE)
    assert not periodicity(audio(noise_N)).voiced_T.any()
    quiet = periodicity(Audio(silence(1).astype(np.float32), RATE))
    assert not quiet.voiced_T.any() and np.isnan(quiet.hnr_T).all() and np.isnan(quiet.mean_hnr)


def test_a_voiced_stretch_of_two_frames_is_noise():
    """40 ms of a tone in noise; whoever asks for it has it."""
    noise_N = np.random.default_rng(3).standard_normal(RATE)
    noise_N[8000:8640] += 20 * tone(400)[:640]
    found = periodicity(audio(noise_N), tracking=PitchTracking(shortest_voice=0.0))
    runs = int(found.voiced_T.sum())
    assert 3 <= runs <= 9
    longer = PitchTracking(shortest_voice=(runs + 1) / 100)
    assert not periodicity(audio(noise_N), tracking=longer).voiced_T.any()


def test_a_pause_between_tones_is_unvoiced():
    """Frames whose centre is 30 ms or more from a tone (half a window and less than a hop) have none of it."""
    sound_N = np.concatenate([tone(150, 0.4), silence(0.3), tone(200, 0.4)])
    tracked = periodicity(audio(sound_N))
    assert not tracked.voiced_T[44:66].any()
    assert tracked.voiced_T[:38].all() and tracked.voiced_T[72:].all()
    np.testing.assert_allclose(tracked.f0_T[72:], 200, rtol=0.01)


@pytest.mark.parametrize(("samples", "count"), [(0, 0), (159, 0), (160, 1), (640, 4), (1024, 6), (16000, 100)])
def test_a_frame_for_every_hop(samples, count):
    tracked = periodicity(audio(tone(200)[:samples]))
    assert len(tracked.f0_T) == len(tracked.hnr_T) == len(tracked.is_inside_T) == count
    # half of a window of 64 ms is needed
    assert tracked.voiced_T.all() if samples >= 640 else not tracked.voiced_T.any()


def test_frames_of_a_codec():
    """25 frames a second: the same F0 and the centres of four frames of 100 a second."""
    sound = audio(harmonics(glide(100, 200)))
    slow, fast = periodicity(sound, hop_seconds=0.04), periodicity(sound)
    assert len(slow.f0_T) == 25
    np.testing.assert_allclose(slow.f0_T, fast.f0_T.reshape(25, 4).mean(axis=1), rtol=0.005)


def test_blocks_of_a_long_clip_do_not_show():
    sound_N = with_noise(harmonics(glide(100, 200, 6)), 20)
    tracked = periodicity(audio(sound_N))
    assert len(tracked.f0_T) == 600
    assert np.abs(12 * np.diff(np.log2(tracked.f0_T))).max() < 0.3


def test_f0_outside_the_range_is_not_reported():
    tracked = periodicity(audio(tone(150)), tracking=PitchTracking(f0_min=200, f0_max=400))
    assert not tracked.voiced_T.any() or tracked.f0_T[tracked.voiced_T].min() >= 200


def test_praat_says_the_same():
    """F0 within .5 % and HNR within 1.5 dB of Praat's, on a sound that changes."""
    parselmouth = pytest.importorskip("parselmouth")
    sound = audio(with_noise(harmonics(glide(110, 220, 2)), 15))
    ours = periodicity(sound)
    praat = parselmouth.Sound(sound.samples_N.astype(float), RATE)
    pitch = praat.to_pitch_ac(time_step=0.01, pitch_floor=75, pitch_ceiling=500)
    centres_T = (np.arange(len(ours.f0_T)) + 0.5) * 0.01
    theirs_T = np.array([pitch.get_value_at_time(t) for t in centres_T])
    both_T = ours.voiced_T & np.isfinite(theirs_T)
    assert both_T.mean() > 0.9
    assert np.abs(ours.f0_T[both_T] / theirs_T[both_T] - 1).max() < 0.005
    harmonicity = praat.to_harmonicity_ac(time_step=0.01, minimum_pitch=75, periods_per_window=4.5)
    recognised = harmonicity.values[harmonicity.values > -200]
    assert abs(recognised.mean() - ours.mean_hnr) < 1.5


def test_windows_lie_around_the_centres_of_hops():
    """Windows of 6 samples, every 2: centres at 1, 3, 5, 7; zeros beyond the clip."""
    expected = [[0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7, 8], [5, 6, 7, 8, 0, 0]]
    np.testing.assert_array_equal(frames(np.arange(1, 9), window=6, hop=2), expected)
    assert first_start(6, 2) == 2
