"""Best paths through left-to-right models of phones, for many clips at once.

A clip's frames have a log-likelihood under every state of every phone. `forced_path` explains them by a given chain of
phones, `free_path` by any sequence of phones. Between frames only the loop over time is left: all clips and states are
one array. Source: L. Rabiner (1989), "A tutorial on hidden Markov models", Proceedings of the IEEE 77 (2), 257–286,
section III B. States have no transition probabilities: in speech they decide little beside the spectra.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STAY, STEP, JUMP = 0, 1, 2
"""How a path came to a state: from itself, from the state before, from the end of another phone."""


@dataclass(frozen=True)
class Path:
    """The best paths of B clips.

    Attributes:
        state_BT: the state of each frame; of frames behind a clip's end, that of its last frame.
        came_BT: how it came there (STAY, STEP, JUMP), 0 in the first frame.
        score_B: log-likelihood plus penalties; −inf where no path fits into the clip.
    """

    state_BT: NDArray[np.int64]
    came_BT: NDArray[np.int8]
    score_B: NDArray[np.float64]


def forced_path(
    logps_BTS: NDArray[np.float32],
    lengths_B: NDArray[np.int64],
    may_skip_BS: NDArray[np.bool_],
    ends_B: NDArray[np.int64],
) -> Path:
    """The path through chains of states that begin with a state that may be left out, and end with one.

    Args:
        logps_BTS: log-likelihood of frames under the states of each clip's chain; −inf behind its end.
        lengths_B: frames of each clip.
        may_skip_BS: whether a state may be left out.
        ends_B: the last state of each chain. The path ends there or in the state before.
    """
    clips, _, states = logps_BTS.shape
    # a state is also reached from two before, where the one between may be left out
    may_jump_BS = np.zeros((clips, states), bool)
    may_jump_BS[:, 2:] = may_skip_BS[:, 1:-1]
    first_BS = np.full((clips, states), -np.inf, np.float32)
    first_BS[:, :2] = logps_BTS[:, 0, :2]

    def reach(score_BS: NDArray[np.float32]) -> NDArray[np.float32]:
        by_step_BS = np.full_like(score_BS, -np.inf)
        by_step_BS[:, 1:] = score_BS[:, :-1]
        by_jump_BS = np.full_like(score_BS, -np.inf)
        by_jump_BS[:, 2:] = np.where(may_jump_BS[:, 2:], score_BS[:, :-2], -np.inf)
        return np.stack([score_BS, by_step_BS, by_jump_BS])

    came_TBS, score_BS = _forward(first_BS, logps_BTS, lengths_B, reach)
    rows_B = np.arange(clips)
    ends_before_B = score_BS[rows_B, ends_B - 1] > score_BS[rows_B, ends_B]
    last_B = ends_B - ends_before_B
    state_BT, came_BT = _trace(came_TBS, last_B, jump_from=None)
    return Path(state_BT, came_BT, score_BS[rows_B, last_B].astype(np.float64))


def free_path(
    logps_BTS: NDArray[np.float32],
    lengths_B: NDArray[np.int64],
    is_start_S: NDArray[np.bool_],
    is_end_S: NDArray[np.bool_],
    entry_cost_S: NDArray[np.float32],
) -> Path:
    """The path through any sequence of phones, each passed from its first state to its last.

    Args:
        logps_BTS: log-likelihood of frames under all states, those of a phone beside each other.
        lengths_B: frames of each clip.
        is_start_S: whether a state is the first of its phone.
        is_end_S: whether it is the last.
        entry_cost_S: what a path pays to begin a phone at its first state, nats.
    """
    first_BS = np.where(is_start_S, logps_BTS[:, 0] - entry_cost_S, -np.inf).astype(np.float32)
    best_end_TB: list[NDArray[np.int64]] = [np.zeros(len(logps_BTS), np.int64)]

    def reach(score_BS: NDArray[np.float32]) -> NDArray[np.float32]:
        by_step_BS = np.full_like(score_BS, -np.inf)
        by_step_BS[:, 1:] = np.where(is_start_S[1:], -np.inf, score_BS[:, :-1])
        ended_BS = np.where(is_end_S, score_BS, -np.inf)
        best_end_TB.append(ended_BS.argmax(axis=1))
        by_jump_BS = np.where(is_start_S, ended_BS.max(axis=1)[:, None] - entry_cost_S, -np.inf)
        return np.stack([score_BS, by_step_BS, by_jump_BS.astype(np.float32)])

    came_TBS, score_BS = _forward(first_BS, logps_BTS, lengths_B, reach)
    ended_BS = np.where(is_end_S, score_BS, -np.inf)
    last_B = ended_BS.argmax(axis=1)
    state_BT, came_BT = _trace(came_TBS, last_B, jump_from=np.array(best_end_TB))
    return Path(state_BT, came_BT, ended_BS[np.arange(len(last_B)), last_B].astype(np.float64))


def _forward(
    first_BS: NDArray[np.float32],
    logps_BTS: NDArray[np.float32],
    lengths_B: NDArray[np.int64],
    reach: Callable[[NDArray[np.float32]], NDArray[np.float32]],
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """How the best path came to each state of each frame (T, B, S), and the scores after each clip's last frame.

    Args:
        reach: scores of a frame → the best score with which each state is reached from it, in each way, (3, B, S).
    """
    clips, count, states = logps_BTS.shape
    came_TBS = np.zeros((count, clips, states), np.int8)
    score_BS = first_BS
    for t in range(1, count):
        from_where_WBS = reach(score_BS)
        came_BS = from_where_WBS.argmax(axis=0)
        reached_BS = from_where_WBS.max(axis=0) + logps_BTS[:, t]
        # a clip that has ended keeps its scores, and its path stays where it is
        goes_on_B1 = (t < lengths_B)[:, None]
        came_TBS[t] = np.where(goes_on_B1, came_BS, STAY)
        score_BS = np.where(goes_on_B1, reached_BS, score_BS)
    return came_TBS, score_BS


def _trace(
    came_TBS: NDArray[np.int8], last_B: NDArray[np.int64], jump_from: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """The states of the path that ends in `last_B`, (B, T), and how it came to each.

    Args:
        jump_from: state that a jump to frame t came from, (T, B); None where it is the state two before.
    """
    count, clips, _ = came_TBS.shape
    state_BT = np.zeros((clips, count), np.int64)
    came_BT = np.zeros((clips, count), np.int8)
    rows_B = np.arange(clips)
    state_B = last_B
    for t in range(count - 1, -1, -1):
        state_BT[:, t] = state_B
        came_B = came_TBS[t, rows_B, state_B]
        came_BT[:, t] = came_B
        origin_B = state_B - 2 if jump_from is None else jump_from[t]
        state_B = np.where(came_B == JUMP, origin_B, state_B - (came_B == STEP))
    return state_BT, came_BT
