"""The recogniser of the gold reward: which phones does a clip have, for one who knows the voice.

A frame is compared with the targets of all phones of the voice, and the best sequence under a price for each change is
found (Viterbi). It hears frames, knows the speaker and has no list of words, so it differs in all three from a
recogniser that listens to audio; no reward uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.packs.speech.sound.voice_frames import Frames
from rlhf_lab.packs.speech.world.phones import PAUSE, PHONES, VOWELS, Voice, envelope

STATES = (PAUSE, *PHONES)
ENVELOPE_DB = 9.0
"""Standard deviation of an envelope around its target, each band."""
ENERGY_DB = 8.0
"""Of the energy of a phone against the clip's loudest frames."""
VOICING = 6.0
"""Price, in nats, of a voiced frame of an unvoiced phone, and the reverse."""
CHANGE = 2.0
"""Price, in nats, of going from one phone to the next."""
PAUSE_DB = -28.0
"""Energy against the clip's loudest frames where a pause and a quiet phone are equally likely."""

AFTER = {"pause": ("vowel",), "consonant": ("pause", "vowel"), "vowel": ("consonant",)}
"""What a sound may follow: all syllables are a consonant and a vowel. A pause may stand before a consonant alone, where
the closure of a stop is one."""
_KINDS = {
    "pause": np.array([0]),
    "consonant": np.array([i for i, phone in enumerate(STATES) if i and phone not in VOWELS]),
    "vowel": np.array([i for i, phone in enumerate(STATES) if phone in VOWELS]),
}


def recognise(clips: Sequence[Frames], voices: Sequence[Voice]) -> list[str]:
    """The phones of each clip, a letter each, pauses left out; none of a clip without frames."""
    lengths_N = np.array([len(clip) for clip in clips], dtype=np.int64)
    if not lengths_N.max(initial=0):
        return ["" for _ in clips]
    # clips of all lengths side by side: a frame beyond a clip's end costs nothing in any state
    price_NTS = np.zeros((len(clips), lengths_N.max(), len(STATES)))
    for prices_TS, clip, voice in zip(price_NTS, clips, voices, strict=True):
        if len(clip):
            prices_TS[: len(clip)] = _prices(clip, voice)
    paths_NT = _best_paths(price_NTS)
    return [_collapse(path[:length]) for path, length in zip(paths_NT.tolist(), lengths_N.tolist(), strict=True)]


@cache
def _targets(voice: Voice) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Envelope, energy and voicing of every phone of a voice."""
    envelopes = np.stack([envelope(phone, voice) for phone in PHONES])
    energies = np.array([phone.energy for phone in PHONES.values()])
    return envelopes, energies, np.array([phone.voiced for phone in PHONES.values()])


def _prices(frames: Frames, voice: Voice) -> NDArray[np.float64]:
    """Negative log-likelihood of each frame under each state, (T, STATES), up to a constant, nats."""
    envelopes, energies, voiced = _targets(voice)
    relative_T = frames.energy_T - np.sort(frames.energy_T)[-3:].mean()
    distance_TS = ((frames.envelope_TD[:, None, :] - envelopes) ** 2).sum(2) / (2 * ENVELOPE_DB**2)
    energy_TS = (relative_T[:, None] - energies) ** 2 / (2 * ENERGY_DB**2)
    voicing_TS = VOICING * (frames.voiced_T[:, None] != voiced)
    pause_T = (relative_T - PAUSE_DB) / ENERGY_DB * 3 + 3.0
    return np.column_stack([np.maximum(pause_T, 0.0), distance_TS + np.minimum(energy_TS, 4.0) + voicing_TS])


def _best_paths(price_NTS: NDArray[np.float64]) -> NDArray[np.int64]:
    """The cheapest sequences of states that the phonotactics allow, (N, T): staying is free, a change costs
    `CHANGE`."""
    clips, frames, states = price_NTS.shape
    rows_N = np.arange(clips)
    came_from_TNS = np.empty((frames, clips, states), dtype=np.int64)
    total_NS = price_NTS[:, 0]
    for t in range(1, frames):
        source_NS = _sources(total_NS, rows_N)
        changed_NS = source_NS != np.arange(states)
        total_NS = np.take_along_axis(total_NS, source_NS, axis=1) + CHANGE * changed_NS + price_NTS[:, t]
        came_from_TNS[t] = source_NS
    paths_NT = np.empty((clips, frames), dtype=np.int64)
    paths_NT[:, -1] = total_NS.argmin(1)
    for t in range(frames - 1, 0, -1):
        paths_NT[:, t - 1] = came_from_TNS[t, rows_N, paths_NT[:, t]]
    return paths_NT


def _sources(total_NS: NDArray[np.float64], rows_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each state the one that the cheapest path to it comes from: itself, or the best of those it may follow."""
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
    """One letter per stretch of a phone."""
    changes = [state for i, state in enumerate(path) if i == 0 or state != path[i - 1]]
    return "".join(STATES[state] for state in changes if state)


def phone_error(true: str, recognised: str) -> float:
    """Edit distance (substitution, insertion, deletion: 1 each) over the number of true phones; may exceed 1."""
    previous = list(range(len(recognised) + 1))
    for i, letter in enumerate(true):
        row = [i + 1]
        for j, other in enumerate(recognised):
            row.append(min(previous[j] + (letter != other), previous[j + 1] + 1, row[j] + 1))
        previous = row
    return previous[-1] / len(true)
