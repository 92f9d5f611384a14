"""The recogniser of the gold reward: which phones does a clip have, for one who knows the voice.

A frame is compared with the targets of all phones of the voice, and the best sequence under a price for each change is
found (Viterbi). It hears frames, knows the speaker and has no list of words, so it differs in all three from a
recogniser that listens to audio; no reward uses it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.environments.speech.phones import PAUSE, PHONES, VOWELS, Voice, envelope
from rlhf_lab.speech.voice_frames import Frames

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


def recognise(frames: Frames, voice: Voice) -> str:
    """The phones of a clip, a letter each, pauses left out."""
    if not len(frames):
        return ""
    return _collapse(_best_path(_prices(frames, voice)))


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


def _best_path(price_TS: NDArray[np.float64]) -> list[int]:
    """The cheapest sequence of states that the phonotactics allow: staying is free, a change costs `CHANGE`."""
    total_S = price_TS[0].copy()
    came_from = []
    own = np.arange(len(STATES))
    for price_S in price_TS[1:]:
        best = {kind: int(members[total_S[members].argmin()]) for kind, members in _KINDS.items()}
        source_S = own.copy()
        for kind, members in _KINDS.items():
            before = min((best[other] for other in AFTER[kind]), key=lambda state: float(total_S[state]))
            changes = total_S[members] > total_S[before] + CHANGE
            source_S[members[changes]] = before
        total_S = total_S[source_S] + CHANGE * (source_S != own) + price_S
        came_from.append(source_S)
    path = [int(total_S.argmin())]
    for source_S in reversed(came_from):
        path.append(int(source_S[path[-1]]))
    return path[::-1]


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
