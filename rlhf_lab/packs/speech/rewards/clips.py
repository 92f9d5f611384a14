"""Audio of responses and its features, shared by all reward terms on audio.

The renderer of the corpus caches decoded audio by the text of the response, and this module caches features in the same
way. Therefore the terms of a reward graph decode and measure each response only once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from weakref import WeakKeyDictionary

import numpy as np

from rlhf_lab.core.arrays import BoolArray, FloatArray
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.media import Renderer
from rlhf_lab.core.progress import Ticker, progress
from rlhf_lab.packs.speech.sound.features import NAMES, extract
from rlhf_lab.training.run import Run

KEPT_REPLIES = 50_000
"""Maximum number of responses in the feature cache, 7 numbers each. The least recently used ones are dropped."""
RENDERED_AT_ONCE = 256
"""Number of responses that are decoded at once and then measured. It limits the audio in memory."""

_features: WeakKeyDictionary[Renderer, OrderedDict[str, FloatArray]] = WeakKeyDictionary()


def renderer_of(run: Run, what: str) -> Renderer:
    """Return the renderer that decodes the responses of the run. Raises ConfigError if they are text.

    Args:
        what: setting that needs the audio, for the error message, such as "reward=acoustic".
    """
    renderer = run.data.renderer
    # corpora of text have no renderer
    if renderer is None:
        raise ConfigError(
            f"{what} needs audio, but the responses of data={run.data.name} are text; use audio data, "
            "such as data=speech"
        )
    return renderer


def features_of(renderer: Renderer, responses: Sequence[str], title: str = "") -> FloatArray:
    """Return the features of responses, (N, 7), in the order of `speech.features.FEATURES`; NaN if undefined.

    Args:
        title: title of the progress bar; empty for no progress bar.
    """
    known = _features.setdefault(renderer, OrderedDict())
    # each distinct response is decoded once
    missing = [response for response in dict.fromkeys(responses) if response not in known]
    shown: AbstractContextManager[Ticker | None] = progress(title, len(missing)) if title else nullcontext()
    with shown as ticker:
        for start in range(0, len(missing), RENDERED_AT_ONCE):
            part = missing[start : start + RENDERED_AT_ONCE]
            for response, audio in zip(part, renderer.render(part), strict=True):
                known[response] = extract(audio)
                if ticker:
                    ticker.advance()
    # entries are dropped only after all rows are collected, so that none of this call's responses is missing
    rows = []
    for response in responses:
        known.move_to_end(response)
        rows.append(known[response])
    while len(known) > KEPT_REPLIES:
        known.popitem(last=False)
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(NAMES))


def is_silent(features_N7: FloatArray) -> BoolArray:
    """Return True for clips without a sounding frame, (N,). Their other features are undefined."""
    return features_N7[:, NAMES.index("silence_fraction")] >= 1
