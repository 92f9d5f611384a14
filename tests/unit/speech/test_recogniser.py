"""The guard's recogniser on synthetic phones: spoken, missing, slurred, noisy or cut."""

import itertools
from dataclasses import astuple

import numpy as np
import pytest
from synthetic_audio import FRICATIVE, VOWELS, audio, draw_speech, say, silence, tone, with_noise

from rlhf_lab.core.errors import ArtifactError, DataError
from rlhf_lab.packs.speech.sound.recogniser import PAUSE, Gaussians, Recogniser, edit_distance, fit_recogniser, observe
from rlhf_lab.packs.speech.sound.viterbi import JUMP, forced_path, free_path


@pytest.fixture(scope="module")
def recogniser():
    return fit_recogniser(*draw_speech(60, seed=0))


@pytest.fixture(scope="module")
def speech():
    return draw_speech(30, seed=1)


def test_it_hears_what_is_said(recogniser, speech):
    """Other clips of the same speakers, with unknown starts of phones: at most 5 % of phones are wrong."""
    clips, phones = speech
    recognised = recogniser.compare(clips, phones)
    assert recognised.phone_error_N.mean() < 0.05
    assert recogniser.phones == tuple(sorted([*VOWELS, FRICATIVE]))


def test_other_words_are_not_what_was_wanted(recogniser, speech):
    clips, phones = speech
    assert recogniser.compare(clips, phones[1:] + phones[:1]).phone_error_N.mean() > 0.7


def test_one_wrong_phone_costs_one_phone(recogniser):
    rng = np.random.default_rng(5)
    clips = [say("sasisu", rng) for _ in range(6)]
    compared = recogniser.compare(clips, [list("sasosu")] * 6)
    assert np.median(compared.phone_error_N) == pytest.approx(1 / 6)
    left_out = recogniser.compare(clips, [list("sasis")] * 6)
    assert np.median(left_out.phone_error_N) == pytest.approx(1 / 5)


def test_pauses_do_not_count(recogniser):
    """Neither in the clip nor in the target."""
    rng = np.random.default_rng(6)
    with_pauses = recogniser.compare([say("_sa__si_so_", rng)], [list("sasiso")])
    assert with_pauses.phone_error_N[0] == 0 and PAUSE not in with_pauses.heard[0]
    assert recogniser.compare([say("sasiso", rng)], [["_", *"sa", PAUSE, *"siso"]]).phone_error_N[0] == 0


@pytest.mark.parametrize("harm", ["noise", "fast", "mumbled", "voiced only"])
def test_what_harms_speech_is_heard(recogniser, harm):
    rng = np.random.default_rng(7)
    phones = [list("sasiso"), list("eusy"), list("isaso"), list("yseas")] * 3
    clean = recogniser.compare([say(text, rng) for text in phones], phones)
    harmed = {
        "noise": [audio(with_noise(say(text, rng).samples_N, 5)) for text in phones],
        "fast": [say(text, rng, milliseconds=(20, 35)) for text in phones],
        # all vowels move to the neutral one
        "mumbled": [say(["e" if phone in VOWELS else phone for phone in text], rng) for text in phones],
        "voiced only": [audio(tone(140, 0.6)) for _ in phones],
    }[harm]
    recognised = recogniser.compare(harmed, phones)
    assert clean.phone_error_N.mean() < 0.1
    assert recognised.phone_error_N.mean() > clean.phone_error_N.mean() + 0.2


def test_neither_loudness_nor_a_steady_filter_is_heard(recogniser, speech):
    clips, phones = speech
    quiet = [audio(clip.samples_N, peak=0.02) for clip in clips]
    heard = recogniser.compare(clips, phones).heard
    assert recogniser.compare(quiet, phones).heard == heard
    # pre-emphasis brightens the entire clip
    brighter = [audio(np.diff(clip.samples_N, prepend=0) + 0.5 * clip.samples_N) for clip in clips]
    recognised = recogniser.compare(brighter, heard)
    assert recognised.phone_error_N.mean() < 0.15


@pytest.mark.parametrize("seconds", [0, 0.01, 1])
def test_nothing_is_heard_in_silence(recogniser, seconds):
    recognised = recogniser.compare([audio(silence(seconds))], [list("sasi")])
    assert recognised.heard == [[]] and recognised.phone_error_N[0] == 1


def test_clips_do_not_depend_on_their_neighbours(recogniser, speech):
    clips, phones = speech
    together = recogniser.compare(clips, phones)
    alone = [recogniser.compare([clip], [requested]) for clip, requested in zip(clips, phones, strict=True)]
    assert together.heard == [each.heard[0] for each in alone]
    nothing = recogniser.compare([], [])
    assert nothing.heard == [] and nothing.phone_error_N.shape == (0,)


def has_same_values(first, second):
    arrays = zip(astuple(first.gaussians), astuple(second.gaussians), strict=True)
    of_both = [(recogniser.phones, recogniser.entry_cost) for recogniser in (first, second)]
    return of_both[0] == of_both[1] and all(np.array_equal(one, other) for one, other in arrays)


def test_it_is_saved_and_loaded(recogniser, speech, tmp_path):
    recogniser.save(tmp_path / "recogniser.npz")
    loaded = Recogniser.load(tmp_path / "recogniser.npz")
    assert has_same_values(loaded, recogniser)
    assert loaded.compare(*speech).heard == recogniser.compare(*speech).heard
    assert [file.name for file in tmp_path.iterdir()] == ["recogniser.npz"]


@pytest.mark.parametrize("content", [None, b"", b"no archive", "half", "another archive"])
def test_a_damaged_file_is_refused(recogniser, tmp_path, content):
    path = tmp_path / "recogniser.npz"
    if content == "half":
        recogniser.save(path)
        path.write_bytes(path.read_bytes()[:5000])
    elif content == "another archive":
        np.savez(path, codes=np.arange(3))
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"recogniser\.npz is not a recogniser, or it is damaged .*; fit it again"):
        Recogniser.load(path)


def test_the_same_clips_give_the_same_recogniser(recogniser):
    again = fit_recogniser(*draw_speech(60, seed=0))
    assert has_same_values(again, recogniser)
    assert not has_same_values(fit_recogniser(*draw_speech(59, seed=0)), recogniser)


def test_what_cannot_be_compared(recogniser, speech):
    clips, phones = speech
    with pytest.raises(DataError, match="clip 1: unknown phone 'q'; the recogniser was fitted to: a e i o s u y"):
        recogniser.compare(clips[:2], [["a"], ["a", "q"]])
    with pytest.raises(DataError, match="clip 0 has no reference phones"):
        recogniser.compare(clips[:1], [["_"]])
    with pytest.raises(DataError, match="30 clips and 2 sequences of phones"):
        recogniser.compare(clips, phones[:2])


def test_what_cannot_be_fitted(speech):
    clips, phones = speech
    with pytest.raises(DataError, match="state 1 of 3 has no frames; provide clips that contain it"):
        Gaussians.fit(np.ones((4, 2), np.float32), np.array([0, 0, 2, 2]), 3)
    with pytest.raises(DataError, match=r"clip 1 has 13 frames of 10 ms, .* its 7 phones need 21; leave it out"):
        fit_recogniser([clips[0], audio(tone(150, 0.03))], [phones[0], list("sasisos")])
    with pytest.raises(DataError, match="30 clips, 2 sequences of phones"):
        fit_recogniser(clips, phones[:2])
    with pytest.raises(DataError, match="with 0 phones in total"):
        fit_recogniser(clips[:1], [["_"]])


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        *[("", "", 0), ("abc", "", 3), ("", "ab", 2), ("abc", "abc", 0), ("abc", "axc", 1), ("abc", "bc", 1)],
        *[("kitten", "sitting", 3), ("abcd", "badc", 3)],
    ],
)
def test_edit_distance(first, second, distance):
    assert edit_distance(list(first), list(second)) == distance


def test_clips_as_short_as_their_phones_allow():
    """15 frames for five phones: each state has one, and the other clips have the pauses."""
    rng = np.random.default_rng(3)
    clips, phones = draw_speech(10, seed=3)
    short = [audio(with_noise(tone(150, 0.05), 20, seed)) for seed in range(3)]
    fitted = fit_recogniser([*clips, *short], [*phones, *[list("aeiou")] * 3])
    assert np.isfinite(fitted.gaussians.means_SD).all()
    assert fitted.compare([say("sasi", rng)], [list("sasi")]).heard != [[]]


def test_log_densities_are_those_of_gaussians():
    """Against the formula, in the space where the covariance within states is the unit matrix."""
    from scipy.stats import norm

    rng = np.random.default_rng(0)
    state_T = rng.integers(0, 3, 3000)
    spread = np.array([[1.0, 0, 0], [0.8, 0.6, 0], [0, 0, 5]])
    observed_TD = (rng.standard_normal((3000, 3)) @ spread + 4 * state_T[:, None]).astype(np.float32)
    gaussians = Gaussians.fit(observed_TD, state_T, 3)
    white_TD = observed_TD @ gaussians.whitening_DD
    for state in range(3):
        deviations_D = np.sqrt(gaussians.variances_SD[state])
        expected_T = norm.logpdf(white_TD, gaussians.means_SD[state], deviations_D).sum(axis=1)
        np.testing.assert_allclose(gaussians.logps(observed_TD)[:, state], expected_T, rtol=1e-3, atol=1e-2)
        within_TD = white_TD[state_T == state] - gaussians.means_SD[state]
        np.testing.assert_allclose(np.cov(within_TD.T), np.eye(3), atol=0.15)


def test_what_is_observed_of_a_clip():
    """Thirteen coefficients and their slopes at every 10 ms of the clip and of 50 ms of silence on either side."""
    observed_TD = observe(audio(tone(150, 0.3)))
    assert observed_TD.shape == (40, 26) and observed_TD[:, 0].max() == 0
    # away from its ends a steady tone has no slope
    assert np.abs(observed_TD[12:28, 13:]).max() < 1 < np.abs(observed_TD[3:8, 13:]).max()


CLIPS = range(4)
LENGTHS_B = np.array([4, 5, 2, 1])
"""Frames of clips that are decoded together."""


def random_logps(states):
    return np.random.default_rng(states).normal(0, 2, (len(LENGTHS_B), LENGTHS_B.max(), states)).astype(np.float32)


def total(logps_TS, states):
    return sum(float(logps_TS[t, state]) for t, state in enumerate(states))


def all_paths(length, states):
    return itertools.product(range(states), repeat=length)


def test_forced_path_is_the_best_of_all():
    """The chain pause, phone of two states, pause, phone of one state, pause; clips 2 and 3 have too few frames."""
    chain_is_pause = np.array([True, False, False, True, False, True])
    logps_BTS = random_logps(6)
    path = forced_path(logps_BTS, LENGTHS_B, np.tile(chain_is_pause, (4, 1)), np.full(4, 5))

    def is_allowed(states):
        steps_are_right = all(
            b - a in (0, 1) or (b - a == 2 and chain_is_pause[a + 1]) for a, b in itertools.pairwise(states)
        )
        return steps_are_right and states[0] in (0, 1) and states[-1] in (4, 5)

    for clip, length in enumerate(LENGTHS_B):
        allowed = [states for states in all_paths(length, 6) if is_allowed(states)]
        scores = [total(logps_BTS[clip], states) for states in allowed]
        if clip < 2:
            assert tuple(path.state_BT[clip, :length]) == allowed[int(np.argmax(scores))]
        else:
            assert not allowed


def test_free_path_is_the_best_of_all():
    """A pause (state 0), a phone of two states (1, 2), and one of one state (3). Beginning a phone costs 1.5."""
    is_start_S = np.array([True, True, False, True])
    is_end_S = np.array([True, False, True, True])
    cost_S = np.array([0, 1.5, 0, 1.5], np.float32)
    logps_BTS = random_logps(4)
    path = free_path(logps_BTS, LENGTHS_B, is_start_S, is_end_S, cost_S)

    def score(logps_TS, states):
        """The best that a sequence of states is worth; a state that follows itself is the same phone."""
        if not is_start_S[states[0]] or not is_end_S[states[-1]]:
            return -np.inf
        value = total(logps_TS, states) - cost_S[states[0]]
        for before, state in itertools.pairwise(states):
            if state == before or (state, before) == (2, 1):
                continue
            if not (is_end_S[before] and is_start_S[state]):
                return -np.inf
            value -= cost_S[state]
        return value

    for clip, length in enumerate(LENGTHS_B):
        candidates = list(all_paths(length, 4))
        scores = [score(logps_BTS[clip], states) for states in candidates]
        assert tuple(path.state_BT[clip, :length]) == candidates[int(np.argmax(scores))]


def test_a_phone_that_is_said_twice_is_two():
    """Two states: 0 0 1 1 0 0 1 1 is the phone twice, and the path says where the second begins."""
    best = [1, 1, 2, 2, 1, 1, 2, 2]
    logps_BTS = np.full((1, 8, 3), -5, np.float32)
    logps_BTS[0, np.arange(8), best] = 0
    starts, ends = np.array([True, True, False]), np.array([True, False, True])
    path = free_path(logps_BTS, np.array([8]), starts, ends, np.zeros(3, np.float32))
    assert path.state_BT[0].tolist() == best
    assert np.flatnonzero(path.came_BT[0] == JUMP).tolist() == [4]
