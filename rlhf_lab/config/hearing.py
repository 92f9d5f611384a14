"""Which data the parts of a run that listen to replies can hear. Imports no torch."""

from __future__ import annotations

from typing import Any

from rlhf_lab.config import registry

HEAR_PHONES = ("reward=intelligibility", "algorithm=recogniser")
"""Parts that compare what is heard with the phones of a text."""


def audible(listener: str) -> str:
    """The data that a part of a run can listen to, as a command chooses them: "data=espeak or data=speech".

    Args:
        listener: as a command chooses it, such as "reward=acoustic".
    """
    sources: dict[str, Any] = {kind: registry.settings_class("data", kind) for kind in registry.kinds("data")}
    needs_phones = listener in HEAR_PHONES
    heard = [kind for kind, cls in sources.items() if cls.audio and (cls.phones or not needs_phones)]
    return " or ".join(f"data={kind}" for kind in sorted(heard))
