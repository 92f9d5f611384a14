"""Measures of the worlds of speech, beside those that any world may have."""

from __future__ import annotations

from rlhf_lab.core.measures import Measure

PHONE_ERROR = Measure(
    "phone_error",
    "wrong, missing and surplus phones per phone of the text, as the world's own recogniser hears them (speech)",
    title="phone error",
    better="lower",
    column="phone error",
)
AUDIO_SECONDS = Measure(
    "audio_seconds", "length of a clip (speech)", title="length", unit="s", phrase="length of a clip"
)
CLIPS = (PHONE_ERROR, AUDIO_SECONDS)
"""clip_world.py"""
