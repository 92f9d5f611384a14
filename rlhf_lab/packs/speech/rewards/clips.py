"""Audio of responses and its features, shared by all reward terms on audio.

The renderer of the corpus caches decoded audio by the text of the response, and this module caches features in the same
way. Therefore the terms of a reward graph decode and measure each response only once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from rlhf_lab.core.arrays import BoolArray, FloatArray
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.media import Renderer
from rlhf_lab.core.progress import tracked
from rlhf_lab.core.types import RewardBatch, TextReward
from rlhf_lab.packs.speech.sound.features import NAMES, extract
from rlhf_lab.training.run import Run

Item = TypeVar("Item", bound=Hashable)
KEPT_REPLIES = 50_000
"""Number of responses, 7 numbers each, above which the feature cache starts anew."""

_features: WeakKeyDictionary[Renderer, dict[str, FloatArray]] = WeakKeyDictionary()


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


def model_file(source: str | Path, name: str, role: str, made_by: str) -> Path:
    """Return the file of a stored model. Raises ConfigError if the directory that `needs` names for the role has none.

    Args:
        made_by: what writes such a directory, for the error message.
    """
    path = Path(source) / name
    if not path.is_file():
        raise ConfigError(f"needs.{role}={source} has no {name}; name the directory of a run of {made_by}")
    return path


def features_of(renderer: Renderer, responses: Sequence[str], title: str = "") -> FloatArray:
    """Return the features of responses, (N, 7), in the order of `speech.features.FEATURES`; NaN if undefined.

    Args:
        title: title of the progress bar; empty for no progress bar.
    """
    known = _features.setdefault(renderer, {})
    # each distinct response is decoded once, and one at a time: the audio of all of them would need much memory
    missing = [response for response in dict.fromkeys(responses) if response not in known]
    for response in tracked(missing, title) if title else missing:
        (audio,) = renderer.render([response])
        known[response] = extract(audio)
    rows_N7 = np.array([known[response] for response in responses], dtype=np.float64).reshape(-1, len(NAMES))
    if len(known) > KEPT_REPLIES:
        known.clear()
    return rows_N7


def scored_once(score: Callable[[list[Item]], FloatArray], items: Sequence[Item]) -> FloatArray:
    """Return the score of each item, such as a response, (N,). Identical items are scored once."""
    distinct = list(dict.fromkeys(items))
    position = {item: i for i, item in enumerate(distinct)}
    return score(distinct)[[position[item] for item in items]]


def reward_of_sound(score: Callable[[list[str]], FloatArray]) -> TextReward:
    """Return a reward term that scores only the sound of a clip, independent of the prompt."""
    return lambda prompts, responses: RewardBatch(scored_once(score, responses))


def is_silent(features_N7: FloatArray) -> BoolArray:
    """Return True for clips without a sounding frame, (N,). Their other features are undefined."""
    return features_N7[:, NAMES.index("silence_fraction")] >= 1
