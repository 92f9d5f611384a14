"""Viterbi paths through left-to-right models of phones, batched over clips.

Source: L. Rabiner (1989), "A tutorial on hidden Markov models", Proceedings of the IEEE 77 (2), 257–286, section III B.
States have no transition probabilities, because these matter little compared with the spectra of speech.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STAY, STEP, JUMP = 0, 1, 2
"""Transition into a state: from the same state, from the previous state, or from the end of another phone."""


@dataclass(frozen=True)
class Path:
    """The best paths of B clips.

    Attributes:
        state_BT: state of each frame. Padding frames after the end of a clip have the state of its last frame.
        came_BT: transition into the state (STAY, STEP, JUMP); 0 in the first frame.
    """

    state_BT: NDArray[np.int64]
    came_BT: NDArray[np.int8]


def forced_path(
    logps_BTS: NDArray[np.float32],
    lengths_B: NDArray[np.int64],
    may_skip_BS: NDArray[np.bool_],
    ends_B: NDArray[np.int64],
) -> Path:
    """Find the best path through a known chain of states. The first and the last state of a chain are optional.

    Args:
        logps_BTS: log-likelihood of frames under the states of each clip's chain; −inf after the end of the chain.
        lengths_B: number of frames of each clip.
        may_skip_BS: True if a state is optional.
        ends_B: index of the last state of each chain. The path ends there or in the previous state.
    """
    clips, _, states = logps_BTS.shape
    may_jump_BS = np.zeros((clips, states), bool)
    # state s can be entered from s − 2 if state s − 1 is optional
    may_jump_BS[:, 2:] = may_skip_BS[:, 1:-1]
    first_BS = np.full((clips, states), -np.inf, np.float32)
    # a path starts in the optional first state or in the second one
    first_BS[:, :2] = logps_BTS[:, 0, :2]

    def reach(score_BS: NDArray[np.float32]) -> NDArray[np.float32]:
        by_step_BS = np.full_like(score_BS, -np.inf)
        by_step_BS[:, 1:] = score_BS[:, :-1]
        by_jump_BS = np.full_like(score_BS, -np.inf)
        by_jump_BS[:, 2:] = np.where(may_jump_BS[:, 2:], score_BS[:, :-2], -np.inf)
        return np.stack([score_BS, by_step_BS, by_jump_BS])  # in the order STAY, STEP, JUMP

    came_TBS, score_BS = _forward(first_BS, logps_BTS, lengths_B, reach)
    rows_B = np.arange(clips)
    ends_before_B = score_BS[rows_B, ends_B - 1] > score_BS[rows_B, ends_B]
    state_BT, came_BT = _trace(came_TBS, ends_B - ends_before_B, jump_from=None)
    return Path(state_BT, came_BT)


def free_path(
    logps_BTS: NDArray[np.float32],
    lengths_B: NDArray[np.int64],
    is_start_S: NDArray[np.bool_],
    is_end_S: NDArray[np.bool_],
    entry_cost_S: NDArray[np.float32],
) -> Path:
    """Find the best path through any sequence of phones. A path visits the states of a phone from first to last.

    Args:
        logps_BTS: log-likelihood of frames under all states; the states of a phone are adjacent.
        lengths_B: number of frames of each clip.
        is_start_S: True for the first state of a phone.
        is_end_S: True for the last state of a phone.
        entry_cost_S: cost of starting a phone at its first state in nats.
    """
    first_BS = np.where(is_start_S, logps_BTS[:, 0] - entry_cost_S, -np.inf).astype(np.float32)
    best_end_TB: list[NDArray[np.int64]] = [np.zeros(len(logps_BTS), np.int64)]

    def reach(score_BS: NDArray[np.float32]) -> NDArray[np.float32]:
        by_step_BS = np.full_like(score_BS, -np.inf)
        by_step_BS[:, 1:] = np.where(is_start_S[1:], -np.inf, score_BS[:, :-1])
        finished_BS = np.where(is_end_S, score_BS, -np.inf)
        # all jumps into a frame come from the same state: the best end of a phone in the previous frame
        best_end_TB.append(finished_BS.argmax(axis=1))
        by_jump_BS = np.where(is_start_S, finished_BS.max(axis=1)[:, None] - entry_cost_S, -np.inf)
        return np.stack([score_BS, by_step_BS, by_jump_BS.astype(np.float32)])

    came_TBS, score_BS = _forward(first_BS, logps_BTS, lengths_B, reach)
    finished_BS = np.where(is_end_S, score_BS, -np.inf)
    state_BT, came_BT = _trace(came_TBS, finished_BS.argmax(axis=1), jump_from=np.array(best_end_TB))
    return Path(state_BT, came_BT)


def _forward(
    first_BS: NDArray[np.float32],
    logps_BTS: NDArray[np.float32],
    lengths_B: NDArray[np.int64],
    reach: Callable[[NDArray[np.float32]], NDArray[np.float32]],
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the transition of the best path into each state of each frame (T, B, S), and the final scores (B, S).

    Args:
        reach: function from the scores of a frame to the best score of each state for each transition, (3, B, S).
    """
    clips, count, states = logps_BTS.shape
    # scores are only needed for the current frame; the transitions are stored to trace the path
    came_TBS = np.zeros((count, clips, states), np.int8)
    score_BS = first_BS
    for t in range(1, count):
        from_where_WBS = reach(score_BS)
        came_BS = from_where_WBS.argmax(axis=0)
        reached_BS = from_where_WBS.max(axis=0) + logps_BTS[:, t]
        # in padding frames a clip keeps its scores and its state
        continues_B1 = (t < lengths_B)[:, None]
        came_TBS[t] = np.where(continues_B1, came_BS, STAY)
        score_BS = np.where(continues_B1, reached_BS, score_BS)
    return came_TBS, score_BS


def _trace(
    came_TBS: NDArray[np.int8], last_B: NDArray[np.int64], jump_from: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Trace the path back from its last state. Returns its states and transitions, (B, T).

    Args:
        jump_from: origin of a jump into frame t, (T, B); None if a jump skips one state.
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
