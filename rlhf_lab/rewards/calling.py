"""Calls of a reward and the values it returns; imports no torch, so that a command can be checked with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from rlhf_lab.core.errors import LabError, NumericError
from rlhf_lab.core.types import FloatArray

Returned = TypeVar("Returned")
EXPECTED = "expected one number per response, or None for a response without a score"


class RewardFailed(LabError):
    """A reward raised an error or took too long: what `on_error=abstain` tolerates."""


def call_with_timeout(call: Callable[[], Returned], timeout_s: float, name: str) -> Returned:
    """Call a reward, for at most `timeout_s` seconds where that is above 0. Raises RewardFailed when it takes longer.

    Args:
        name: the reward as errors name it.
    """
    if not timeout_s:
        return call()
    outcome: list[Any] = []  # the returned value or the error; empty until the call ends

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # re-raised in the calling thread, KeyboardInterrupt and SystemExit too
            outcome.append(error)

    # A daemon, so that a call that hangs does not keep the process from ending.
    thread = threading.Thread(target=run, name=f"reward-{name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not outcome:
        raise RewardFailed(f"reward {name} took longer than timeout_s={timeout_s}")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    returned: Returned = outcome[0]
    return returned


def scores(values: Any, responses: Sequence[str], what: str) -> FloatArray:
    """Values as one float per response, (N,); None and masked entries are NaN. Raises NumericError for anything else.

    Args:
        what: the source of the values as errors name it.
    """
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float64), np.nan)
    try:
        array = np.asarray(values)
    except Exception as error:  # nested lists of different lengths, a tensor on a GPU or with a gradient
        reason = f"{_excerpt(values)}, which cannot be read as numbers ({error})"
        raise NumericError(f"{what} returned {reason}; {EXPECTED}") from None
    if array.dtype.kind not in "biuf":  # bool, integer, unsigned integer, float
        for entry in array.ravel().tolist():  # as Python's own types, which have the names a user knows
            if entry is not None and not (array.dtype.kind == "O" and isinstance(entry, Real)):
                raise NumericError(f"{what} returned {_excerpt(entry)}; {EXPECTED}")
    if array.ndim == 0:
        raise NumericError(f"{what} returned {_excerpt(values)} for {len(responses)} responses; {EXPECTED}")
    if array.shape != (len(responses),):
        is_list = array.ndim == 1
        returned = f"{len(array)} value{'s' * (len(array) != 1)}" if is_list else f"values of shape {array.shape}"
        raise NumericError(f"{what} returned {returned} for {len(responses)} responses; {EXPECTED}")
    scores_N = array.astype(np.float64)
    if np.isinf(scores_N).any():
        first = int(np.flatnonzero(np.isinf(scores_N))[0])
        raise NumericError(f"{what} is infinite for response {first}: {responses[first][:80]!r}; {EXPECTED}")
    return scores_N


def nan_count(values: Any) -> int:
    """Number of entries that are NaN themselves; None and masked entries are not counted."""
    return sum(isinstance(entry, Real) and entry != entry for entry in np.ma.MaskedArray(values).tolist())


def _excerpt(value: Any) -> str:
    """Type and beginning of a returned value, such as `str 'good'`."""
    if value is None:
        return "None"
    text = repr(value)
    return f"{type(value).__name__} {text[:60]}" + ("…" if len(text) > 60 else "")
