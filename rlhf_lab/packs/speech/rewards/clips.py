"""The audio of replies and its features, shared by all terms that listen.

The renderer of the corpus keeps what it decoded, by the text of the reply; the features are kept here in the same way.
So the terms of a graph decode and measure a reply once between them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from weakref import WeakKeyDictionary

import numpy as np

from rlhf_lab.core.arrays import BoolArray, FloatArray
from rlhf_lab.core.console import Ticker, progress
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.media import Renderer
from rlhf_lab.packs.speech.sound.features import NAMES, extract
from rlhf_lab.training.run import Run

KEPT_REPLIES = 50_000
"""Replies whose features are kept, the most recent ones: 7 numbers each."""
RENDERED_AT_ONCE = 256
"""Replies that are decoded before they are measured; audio of more of them need not be in memory."""

_features: WeakKeyDictionary[Renderer, OrderedDict[str, FloatArray]] = WeakKeyDictionary()


def renderer_of(run: Run, what: str) -> Renderer:
    """What makes audio of the run's replies. Raises ConfigError where they are text.

    Args:
        what: that listens, as a command chooses it: "reward=acoustic".
    """
    renderer = run.data.renderer
    if renderer is None:
        raise ConfigError(f"{what} reads audio, and the responses of data={run.data.name} are text")
    return renderer


def features_of(renderer: Renderer, responses: Sequence[str], title: str = "") -> FloatArray:
    """The features of replies, (N, 7), in the order of `speech.features.FEATURES`; NaN for what a clip does not have.

    Args:
        title: what the work is called while it is shown; not shown without.
    """
    known = _features.setdefault(renderer, OrderedDict())
    missing = [response for response in dict.fromkeys(responses) if response not in known]
    shown: AbstractContextManager[Ticker | None] = progress(title, len(missing)) if title else nullcontext()
    with shown as ticker:
        for begin in range(0, len(missing), RENDERED_AT_ONCE):
            part = missing[begin : begin + RENDERED_AT_ONCE]
            for response, audio in zip(part, renderer.render(part), strict=True):
                known[response] = extract(audio)
                if ticker:
                    ticker.advance()
    rows = []
    for response in responses:
        known.move_to_end(response)
        rows.append(known[response])
    while len(known) > KEPT_REPLIES:
        known.popitem(last=False)
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(NAMES))


def is_silent(features_N7: FloatArray) -> BoolArray:
    """Clips in which no frame sounds, (N,): all that is measured of sounding frames is then a stated value."""
    return features_N7[:, NAMES.index("silence_fraction")] >= 1
