"""The renderer: what frames ask for is in the samples, measured by means that the renderer does not have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import fft

from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.analysis import analyse
from rlhf_lab.packs.speech.sound.audio import RATE
from rlhf_lab.packs.speech.sound.periodicity import periodicity
from rlhf_lab.packs.speech.sound.renderer import render
from rlhf_lab.packs.speech.sound.voice_frames import BANDS, SILENCE_DB, Frames, band_centres

MIDDLE = slice(3, -3)


def resonances(*hertz: float) -> np.ndarray:
    """An envelope that falls by 6 dB per octave, with a peak of 12 dB at each frequency."""
    centres = band_centres()
    decibel = -6 * np.log2(centres / 500)
    for frequency in hertz:
        decibel = decibel + 12 * np.exp(-(((centres - frequency) / (0.2 * frequency)) ** 2))
    return decibel - decibel.mean()


def steady(f0: float = 120.0, frames: int = 25, energy: float = -24.0, aperiodicity: float = 0.02) -> Frames:
    return Frames(
        np.full(frames, f0),
        np.tile(resonances(700, 1800), (frames, 1)),
        np.full(frames, energy),
        np.full(frames, aperiodicity if f0 else 1.0),
    )


def test_length_range_and_determinism():
    samples = render(steady(frames=7))
    assert samples.shape == (7 * 640,)
    assert samples.dtype == np.float32
    assert (samples == render(steady(frames=7))).all()
    assert np.abs(render(steady(energy=0.0))).max() <= 1
    assert render(steady(frames=0)).shape == (0,)
    assert len(render(steady(frames=1))) == 640
    assert not render(steady(energy=SILENCE_DB)).any()


@pytest.mark.parametrize("f0", [80.0, 100.0, 138.0, 188.0, 300.0])
def test_pitch_of_a_steady_voice(f0):
    """Within .1 %: autocorrelation against the phase that the renderer counts."""
    measured = periodicity(Audio(render(steady(f0)), RATE)).f0_T[12:-12]
    assert measured == pytest.approx(f0, rel=1e-3)


def test_pitch_of_a_glide():
    frames = steady(frames=50)
    f0 = np.geomspace(100, 200, 50)
    measured = periodicity(Audio(render(replace(frames, f0_T=f0)), RATE)).f0_T
    at_frames = measured.reshape(50, 4).mean(1)
    error = 12 * np.log2(at_frames[MIDDLE] / f0[MIDDLE])
    assert np.abs(error).max() < 0.1  # semitones


def test_an_unvoiced_clip_has_no_pitch():
    assert not periodicity(Audio(render(steady(0.0)), RATE)).voiced_T.any()


@pytest.mark.parametrize(("f0", "energy"), [(0.0, -24.0), (0.0, -40.0), (100.0, -24.0), (188.0, -12.0)])
def test_energy(f0, energy):
    """.6 dB: at low pitches few harmonics say what the envelope is between them."""
    samples = render(steady(f0, energy=energy))[2000:-2000]
    assert 10 * np.log10((samples.astype(float) ** 2).mean()) == pytest.approx(energy, abs=0.6)


@pytest.mark.parametrize("aperiodicity", [0.01, 0.03, 0.1, 0.3])
def test_harmonics_to_noise_ratio(aperiodicity):
    """10 log10((1 − a) / a), within 1.5 dB."""
    requested = 10 * np.log10((1 - aperiodicity) / aperiodicity)
    measured = periodicity(Audio(render(steady(120.0, frames=100, aperiodicity=aperiodicity)), RATE)).mean_hnr
    assert measured == pytest.approx(requested, abs=1.5)


def test_noise_has_the_asked_spectrum():
    """The mean spectrum of an unvoiced clip, at the bands: within 1.5 dB of the envelope."""
    samples = render(steady(0.0, frames=200))
    windows = np.lib.stride_tricks.sliding_window_view(samples, 1024)[::512] * np.hanning(1024)
    power = (np.abs(fft.rfft(windows, axis=1)) ** 2).mean(0)
    frequency = np.linspace(0, RATE / 2, len(power))
    measured = 10 * np.log10([power[np.abs(frequency - centre) < 40].mean() for centre in band_centres()])
    assert measured - measured.mean() == pytest.approx(resonances(700, 1800), abs=1.5)


# Analysis: the way back


@pytest.mark.parametrize("f0", [0.0, 90.0, 138.0, 200.0, 300.0])
def test_analysis_finds_the_frames(f0):
    requested = steady(f0)
    found = analyse(render(requested))
    assert len(found) == 25
    right = np.isclose(found.f0_T[MIDDLE], requested.f0_T[MIDDLE], rtol=2e-3)
    assert right.mean() > 0.9  # by chance noise repeats for a frame
    assert found.energy_T[MIDDLE].mean() == pytest.approx(-24, abs=0.6)
    error = found.envelope_TD[MIDDLE] - requested.envelope_TD[MIDDLE]
    assert np.sqrt((error**2).mean()) < 2.5  # dB
    assert found.aperiodicity_T[MIDDLE].mean() == pytest.approx(requested.aperiodicity_T[0], abs=0.05)


def test_analysis_of_silence_and_of_parts_of_a_frame():
    found = analyse(np.zeros(1000, dtype=np.float32))
    assert len(found) == 2
    assert found.energy_T.tolist() == [SILENCE_DB, SILENCE_DB]
    assert not found.voiced_T.any()
    assert found.envelope_TD.shape == (2, BANDS)
    assert len(analyse(np.zeros(0, dtype=np.float32))) == 0
