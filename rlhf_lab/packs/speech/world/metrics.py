"""Measures of the speech worlds, in addition to those of all worlds."""

from __future__ import annotations

from rlhf_lab.core.measures import Measure

PHONE_ERROR = Measure(
    "phone_error",
    "wrong, missing and surplus phones per phone of the text, according to the recogniser of the world (speech)",
    title="phone error",
    better="lower",
    column="phone error",
)
AUDIO_SECONDS = Measure(
    "audio_seconds", "length of a clip (speech)", title="length", unit="s", phrase="length of a clip"
)
CLIPS = (PHONE_ERROR, AUDIO_SECONDS)
"""Measures of clip_world.py."""
