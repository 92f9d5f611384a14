"""Fit of a recogniser to clips and their phones, without the times of the phones.

Flat start: each phone gets an equal part of the sounding frames of a clip. Then two steps alternate (Viterbi training;
Rabiner 1989, section VI): the Gaussians are fitted to the frames of each state, and the frames are aligned again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.phone_models import Gaussians, observe
from rlhf_lab.packs.speech.sound.recogniser import PAUSE, STATES, Recogniser, edit_distance

ITERATIONS = 8
"""Number of fits and alignments after the flat start."""
ENTRY_COSTS = (0.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 45.0)
"""Candidate entry costs: costs in nats of starting a phone, of which the fit selects one."""
CLIPS_FOR_COST = 300
"""Approximate number of clips on which the entry costs are compared."""
QUIET = 0.75
"""Threshold of the flat start between the loudest (0) and the quietest frame (1); quieter frames are pauses."""


def fit_recogniser(
    clips: Sequence[Audio], phones: Sequence[Sequence[str]], *, iterations: int = ITERATIONS
) -> Recogniser:
    """Fit a recogniser of all phones that occur. The fit is deterministic and needs no seed.

    Args:
        phones: phones of each clip; pauses (`PAUSE`) are optional, because the alignment finds them.
        iterations: number of fits and alignments.

    Raises DataError if a clip is too short for its phones, or if the numbers of clips and sequences differ.
    """
    # sorted, so that the order of phones does not depend on the order of clips
    names = tuple(sorted({str(phone) for sequence in phones for phone in sequence} - {PAUSE}))
    if len(clips) != len(phones) or not names:
        raise DataError(
            f"{len(clips)} clips, {len(phones)} sequences of phones with {len(names)} phones in total; pass one "
            "sequence per clip"
        )
    observed = [observe(clip) for clip in clips]
    states = 1 + STATES * len(names)
    # `indices` needs only the names, so the Gaussians of this recogniser are placeholders
    chains = Recogniser(names, _unfitted(states, observed[0].shape[1]), 0.0).indices(phones)
    for row, (rows_TD, chain) in enumerate(zip(observed, chains, strict=True)):
        if len(rows_TD) < STATES * len(chain):
            raise DataError(
                f"clip {row} has {len(rows_TD)} frames of 10 ms, including the added silence, but its {len(chain)} "
                f"phones need {STATES * len(chain)}; leave it out"
            )
    everything_TD = np.concatenate(observed)
    starts = [_flat_start(rows_TD, chain) for rows_TD, chain in zip(observed, chains, strict=True)]
    state_T = np.concatenate(starts)
    # entry costs are 0 here: in a forced alignment they would be the same for all paths
    for _ in range(iterations):
        recogniser = Recogniser(names, Gaussians.fit(everything_TD, state_T, states), 0.0)
        aligned = recogniser.align(observed, chains)
        state_T = np.concatenate([states_T for states_T, _ in aligned])
    gaussians = Gaussians.fit(everything_TD, state_T, states)
    return Recogniser(names, gaussians, _best_entry_cost(names, gaussians, observed, chains))


def _unfitted(states: int, size: int) -> Gaussians:
    return Gaussians(np.eye(size), np.zeros((states, size)), np.ones((states, size)))


def _flat_start(rows_TD: NDArray[np.float32], chain: Sequence[int]) -> NDArray[np.int64]:
    """Return the initial states of frames. Sounding frames are split evenly among phones; the others are pauses."""
    chain_states = np.concatenate([1 + STATES * phone + np.arange(STATES) for phone in chain])
    # coefficient 0 is the mean level relative to the loudest frame; its minimum is in the added silence
    level_T = rows_TD[:, 0]
    positions = np.flatnonzero(level_T > QUIET * level_T.min())
    if len(positions) < len(chain_states):  # each state needs a frame, so quiet frames are used as well
        positions = np.arange(len(rows_TD))
    states_T = np.zeros(len(rows_TD), np.int64)
    states_T[positions] = chain_states[np.arange(len(positions)) * len(chain_states) // len(positions)]
    return states_T


def _best_entry_cost(
    names: tuple[str, ...],
    gaussians: Gaussians,
    observed: Sequence[NDArray[np.float32]],
    chains: Sequence[Sequence[int]],
) -> float:
    """Return the entry cost with the minimum number of errors on a subset of the clips; the lowest one in a tie."""
    # every n-th clip, so that the subset is spread over all clips
    every = max(1, len(observed) // CLIPS_FOR_COST)
    reference_phones = [[names[phone] for phone in chain] for chain in chains[::every]]
    errors = []
    for cost in ENTRY_COSTS:
        recognised, _ = Recogniser(names, gaussians, cost).transcribe(observed[::every])
        pairs = zip(recognised, reference_phones, strict=True)
        errors.append(sum(edit_distance(hypothesis, reference) for hypothesis, reference in pairs))
    return ENTRY_COSTS[int(np.argmin(errors))]
