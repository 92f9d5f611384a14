"""Predictions of mean opinion scores (MOS) for responses: DNSMOS, or a function of the user (`algorithm.mos`)."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.media import Renderer
from rlhf_lab.core.user_code import load_from_file
from rlhf_lab.packs.speech.rewards.dnsmos import predict_responses
from rlhf_lab.packs.speech.rewards.settings import DNSMOS
from rlhf_lab.rewards.checked import scores


def opinion_scores(mos: str, renderer: Renderer, responses: Sequence[str]) -> FloatArray:
    """Return the predicted opinion score of each response, (N,).

    Args:
        mos: `dnsmos`, or FILE.py:FUNCTION of a function from a list of `Audio` to a number for each.
    """
    if mos == DNSMOS:
        return predict_responses(renderer, responses)
    where = f"algorithm.mos={mos}"
    predict = load_from_file(where, mos)
    if not callable(predict):
        raise ConfigError(f"{where} is of type {type(predict).__name__}; expected a function of a list of Audio")
    return scores(predict(renderer.render(responses)), responses, where)
