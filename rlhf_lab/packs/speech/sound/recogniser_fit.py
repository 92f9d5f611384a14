"""Fits a recogniser to clips and the phones they say, without knowing when each phone is said.

Flat start: the sounding part of a clip is divided evenly among its phones. Then, a few times, the Gaussians are fitted
to the frames of each state and the frames aligned anew (Viterbi training; Rabiner 1989, section VI).
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
ENTRY_COSTS = (0.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 45.0)
"""Costs of beginning a phone that are tried, nats."""
CLIPS_FOR_COST = 300
"""How many clips the costs are tried on."""
QUIET = 0.75
"""At the flat start a frame is a pause if it lies this share of the way from the loudest to the quietest one."""


def fit_recogniser(
    clips: Sequence[Audio], phones: Sequence[Sequence[str]], *, iterations: int = ITERATIONS
) -> Recogniser:
    """A recogniser of all phones that occur. Needs no seed: nothing is drawn.

    Args:
        phones: what each clip says; pauses (`PAUSE`) may be left out, and are found wherever they are.
        iterations: how often the clips are aligned.

    Raises DataError for a clip that is too short for its phones, and where numbers of clips and sequences differ.
    """
    names = tuple(sorted({str(phone) for sequence in phones for phone in sequence} - {PAUSE}))
    if len(clips) != len(phones) or not names:
        raise DataError(
            f"{len(clips)} clips, {len(phones)} sequences of phones with {len(names)} phones in all; give each clip "
            "its own"
        )
    observed = [observe(clip) for clip in clips]
    states = 1 + STATES * len(names)
    chains = Recogniser(names, _unfitted(states, observed[0].shape[1]), 0.0).indices(phones)
    for row, (rows_TD, chain) in enumerate(zip(observed, chains, strict=True)):
        if len(rows_TD) < STATES * len(chain):
            raise DataError(
                f"clip {row} has {len(rows_TD)} frames of 10 ms with the silence around it, and its {len(chain)} "
                f"phones need {STATES * len(chain)}; leave it out"
            )
    everything_TD = np.concatenate(observed)
    state_T = np.concatenate([_flat_start(rows_TD, chain) for rows_TD, chain in zip(observed, chains, strict=True)])
    for _ in range(iterations):
        recogniser = Recogniser(names, Gaussians.fit(everything_TD, state_T, states), 0.0)
        state_T = np.concatenate([states_T for states_T, _ in recogniser.align(observed, chains)])
    gaussians = Gaussians.fit(everything_TD, state_T, states)
    return Recogniser(names, gaussians, _best_entry_cost(names, gaussians, observed, chains))


def _unfitted(states: int, size: int) -> Gaussians:
    return Gaussians(np.eye(size), np.zeros((states, size)), np.ones((states, size)))


def _flat_start(rows_TD: NDArray[np.float32], chain: Sequence[int]) -> NDArray[np.int64]:
    """States of a clip's frames: those of its phones, each for the same time, where it sounds; the pause elsewhere."""
    chain_states = np.concatenate([1 + STATES * phone + np.arange(STATES) for phone in chain])
    # the 0th coefficient is the mean level, 0 in the loudest frame; a clip is observed with silence around it
    level_T = rows_TD[:, 0]
    places = np.flatnonzero(level_T > QUIET * level_T.min())
    if len(places) < len(chain_states):
        places = np.arange(len(rows_TD))
    states_T = np.zeros(len(rows_TD), np.int64)
    states_T[places] = chain_states[np.arange(len(places)) * len(chain_states) // len(places)]
    return states_T


def _best_entry_cost(
    names: tuple[str, ...],
    gaussians: Gaussians,
    observed: Sequence[NDArray[np.float32]],
    chains: Sequence[Sequence[int]],
) -> float:
    """The cost with the fewest errors on some of the clips, the lowest of several."""
    every = max(1, len(observed) // CLIPS_FOR_COST)
    wanted = [[names[phone] for phone in chain] for chain in chains[::every]]
    errors = []
    for cost in ENTRY_COSTS:
        heard, _ = Recogniser(names, gaussians, cost).hear(observed[::every])
        errors.append(sum(edit_distance(said, asked) for said, asked in zip(heard, wanted, strict=True)))
    return ENTRY_COSTS[int(np.argmin(errors))]
