"""Calls of a reward and checks of the returned values. Does not import torch, so commands can be checked with it."""

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
    """Error of a reward that failed or took too long; `on_error=abstain` tolerates it.

    Attributes:
        scores_N: scores of a call that failed for some of its responses, NaN for those, (N,); None if the reward does
            not report which responses failed.
    """

    def __init__(self, message: str, scores_N: FloatArray | None = None):
        super().__init__(message)
        self.scores_N = scores_N


class InvalidScores(NumericError):
    """Some of the values that a reward returned are not finite numbers. `scores_N`: see `RewardFailed`."""

    def __init__(self, message: str, scores_N: FloatArray):
        super().__init__(message)
        self.scores_N = scores_N


def hint(term: str) -> str:
    return f"correct it, or let it abstain with reward.terms.{term}.on_error=abstain"


def call_with_timeout(call: Callable[[], Returned], timeout_s: float, name: str) -> Returned:
    """Call a reward with a time limit; 0 means no limit. Raise RewardFailed if it takes longer."""
    if not timeout_s:
        return call()
    outcome: list[Any] = []  # the returned value or the error; empty until the call ends

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # re-raised in the calling thread, including KeyboardInterrupt and SystemExit
            outcome.append(error)

    # A daemon thread, so that a hanging call cannot keep the process alive.
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
    """Convert values to one float per response, (N,); None and masked entries become NaN.

    Raise NumericError for anything else. If there is one value per response but some are not finite numbers, the error
    is InvalidScores.

    Args:
        what: source of the values for messages.
    """
    if isinstance(values, np.ma.MaskedArray):
        # Integers have no NaN, so they become floats before masked entries are filled.
        values = np.ma.filled(values.astype(np.float64), np.nan)
    try:
        array = np.asarray(values)
    except Exception as error:  # nested lists of different lengths, a tensor on a GPU or with a gradient
        reason = f"{_excerpt(values)}, which cannot be read as numbers ({error})"
        raise NumericError(f"{what} returned {reason}; {EXPECTED}") from None
    invalid: list[Any] = []
    if array.dtype.kind not in "biuf":  # bool, integer, unsigned integer, float
        entries = array.ravel().tolist()  # Python's own types, whose names the user knows
        invalid = [entry for entry in entries if not _is_score(entry)]
        if invalid and array.shape != (len(responses),):
            raise NumericError(f"{what} returned {_excerpt(invalid[0])}; {EXPECTED}")
        if invalid:
            array = np.array([entry if _is_score(entry) else None for entry in values], object)
    if array.ndim == 0:
        raise NumericError(f"{what} returned {_excerpt(values)} for {len(responses)} responses; {EXPECTED}")
    if array.shape != (len(responses),):
        plural = "" if len(array) == 1 else "s"
        returned = f"{len(array)} value{plural}" if array.ndim == 1 else f"values of shape {array.shape}"
        raise NumericError(f"{what} returned {returned} for {len(responses)} responses; {EXPECTED}")
    scores_N = array.astype(np.float64)
    finite_N = np.where(np.isinf(scores_N), np.nan, scores_N)
    if invalid:
        raise InvalidScores(f"{what} returned {_excerpt(invalid[0])}; {EXPECTED}", finite_N)
    if np.isinf(scores_N).any():
        first = int(np.flatnonzero(np.isinf(scores_N))[0])
        message = f"{what} is infinite for response {first}: {responses[first][:80]!r}; {EXPECTED}"
        raise InvalidScores(message, finite_N)
    return scores_N


def _is_score(entry: Any) -> bool:
    return entry is None or isinstance(entry, (Real, np.bool_))  # NumPy's truth values are no numbers to Python


def nan_count(values: Any) -> int:
    """Return the number of NaN entries; None and masked entries do not count."""
    entries = np.ma.MaskedArray(values).tolist()  # masked entries become None
    return sum(isinstance(entry, Real) and entry != entry for entry in entries)  # only NaN differs from itself


def _excerpt(value: Any) -> str:
    if value is None:
        return "None"
    text = repr(value)
    return f"{type(value).__name__} {text[:60]}" + ("…" if len(text) > 60 else "")
