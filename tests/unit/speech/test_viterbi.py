"""The best path is the best of all paths, on cases small enough to try them all."""

import itertools

import numpy as np
import pytest

from rlhf_lab.packs.speech.sound.viterbi import JUMP, forced_path, free_path

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
    """The chain pause, phone of two states, pause, phone of one state, pause; clip 3 has no frame for all of them."""
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
        if not allowed:
            assert path.score_B[clip] == -np.inf
            continue
        assert path.score_B[clip] == pytest.approx(max(scores), rel=1e-5)
        assert tuple(path.state_BT[clip, :length]) == allowed[int(np.argmax(scores))]
    assert list(np.isfinite(path.score_B)) == [True, True, False, False]


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
        assert path.score_B[clip] == pytest.approx(max(scores), rel=1e-5)
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
