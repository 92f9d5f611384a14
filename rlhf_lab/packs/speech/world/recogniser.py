"""Recogniser of the gold reward: finds the phones of a clip, given the voice.

It compares each frame with the targets of all phones of the voice, and finds the best sequence of phones with a cost
for each change (Viterbi). It reads frames, knows the speaker and has no list of words. No reward uses it, so that gold
remains independent of the rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.packs.speech.sound.recogniser import edit_distance
from rlhf_lab.packs.speech.sound.voice_frames import Frames
from rlhf_lab.packs.speech.world.phones import PAUSE, PHONES, VOWELS, Voice, envelope

STATES = (PAUSE, *PHONES)
ENVELOPE_DB = 9.0
"""Standard deviation of an envelope around its target in dB, for each band."""
ENERGY_DB = 8.0
"""Standard deviation in dB of the energy of a phone, relative to the loudest frames of the clip."""
VOICING = 6.0
"""Cost in nats of a voiced frame in an unvoiced phone, and vice versa."""
CHANGE = 2.0
"""Cost in nats of a change from one phone to another."""
PAUSE_DB = -28.0
"""Energy in dB, relative to the loudest frames of the clip, at which pause and quiet phone are equally likely."""

AFTER = {"pause": ("vowel",), "consonant": ("pause", "vowel"), "vowel": ("consonant",)}
"""Kinds of phones that may precede each kind. All syllables are a consonant and a vowel. A pause is only allowed before
a consonant; the closure of a stop counts as a pause."""
_KINDS = {
    "pause": np.array([0]),
    "consonant": np.array([i for i, phone in enumerate(STATES) if i and phone not in VOWELS]),
    "vowel": np.array([i for i, phone in enumerate(STATES) if phone in VOWELS]),
}


def recognise(clips: Sequence[Frames], voices: Sequence[Voice]) -> list[str]:
    """Return the phones of each clip, one letter per phone, without pauses; empty for a clip without frames."""
    lengths_N = np.array([len(clip) for clip in clips], dtype=np.int64)
    if not lengths_N.max(initial=0):
        return ["" for _ in clips]
    # clips are padded to the same length; padding frames cost 0 in all states
    price_NTS = np.zeros((len(clips), lengths_N.max(), len(STATES)))
    for prices_TS, clip, voice in zip(price_NTS, clips, voices, strict=True):
        if len(clip):
            prices_TS[: len(clip)] = _prices(clip, voice)
    paths_NT = _best_paths(price_NTS)
    return [_collapse(path[:length]) for path, length in zip(paths_NT.tolist(), lengths_N.tolist(), strict=True)]


@cache
def _targets(voice: Voice) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return envelope, energy and voicing of all phones of a voice."""
    envelopes = np.stack([envelope(phone, voice) for phone in PHONES])
    energies = np.array([phone.energy for phone in PHONES.values()])
    return envelopes, energies, np.array([phone.voiced for phone in PHONES.values()])


def _prices(frames: Frames, voice: Voice) -> NDArray[np.float64]:
    """Return the negative log-likelihood of each frame under each state in nats, up to a constant, (T, STATES)."""
    envelopes, energies, voiced = _targets(voice)
    # energy relative to the three loudest frames: the loudness of a style must not matter
    relative_T = frames.energy_T - np.sort(frames.energy_T)[-3:].mean()
    # squared distance to each target, as the exponent of a Gaussian with the same variance in all bands
    distance_TS = ((frames.envelope_TD[:, None, :] - envelopes) ** 2).sum(2) / (2 * ENVELOPE_DB**2)
    energy_TS = (relative_T[:, None] - energies) ** 2 / (2 * ENERGY_DB**2)
    voicing_TS = VOICING * (frames.voiced_T[:, None] != voiced)
    # grows linearly with the energy of the frame, and is 0 for frames well below PAUSE_DB
    pause_T = (relative_T - PAUSE_DB) / ENERGY_DB * 3 + 3.0
    return np.column_stack([np.maximum(pause_T, 0.0), distance_TS + np.minimum(energy_TS, 4.0) + voicing_TS])


def _best_paths(price_NTS: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the cheapest sequences of states that `AFTER` allows, (N, T).

    Staying in a state is free, and a change costs `CHANGE`.
    """
    clips, frames, states = price_NTS.shape
    rows_N = np.arange(clips)
    came_from_TNS = np.empty((frames, clips, states), dtype=np.int64)
    total_NS = price_NTS[:, 0]
    for t in range(1, frames):
        source_NS = _sources(total_NS, rows_N)
        changed_NS = source_NS != np.arange(states)
        total_NS = np.take_along_axis(total_NS, source_NS, axis=1) + CHANGE * changed_NS + price_NTS[:, t]
        came_from_TNS[t] = source_NS
    # trace the best path back from the last frame; padding frames cost 0, so they keep the last state
    paths_NT = np.empty((clips, frames), dtype=np.int64)
    paths_NT[:, -1] = total_NS.argmin(1)
    for t in range(frames - 1, 0, -1):
        paths_NT[:, t - 1] = came_from_TNS[t, rows_N, paths_NT[:, t]]
    return paths_NT


def _sources(total_NS: NDArray[np.float64], rows_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the previous state on the cheapest path to each state: itself, or the best state that may precede it."""
    # all states of a kind have the same allowed predecessors, so the best state per kind is sufficient
    best_N = {kind: members[total_NS[:, members].argmin(1)] for kind, members in _KINDS.items()}
    source_NS = np.tile(np.arange(total_NS.shape[1]), (len(rows_N), 1))
    for kind, members in _KINDS.items():
        before_N = best_N[AFTER[kind][0]]
        for other in AFTER[kind][1:]:
            is_better_N = total_NS[rows_N, best_N[other]] < total_NS[rows_N, before_N]
            before_N = np.where(is_better_N, best_N[other], before_N)
        changed_N = total_NS[rows_N, before_N] + CHANGE
        is_change_NM = total_NS[:, members] > changed_N[:, None]
        source_NS[:, members] = np.where(is_change_NM, before_N[:, None], members)
    return source_NS


def _collapse(path: list[int]) -> str:
    """Return one letter for each run of a phone."""
    # a change of state starts a new letter; state 0 is the pause and has none
    changes = [state for i, state in enumerate(path) if i == 0 or state != path[i - 1]]
    return "".join(STATES[state] for state in changes if state)


def phone_error(true: str, recognised: str) -> float:
    """Return the edit distance (1 per substitution, insertion, deletion) per true phone; it may exceed 1."""
    return edit_distance(recognised, true) / len(true)
