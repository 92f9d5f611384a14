"""Answers that the report of a speech run gives to the question of its recipe."""

from __future__ import annotations

from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact


def recognised_phones(run: StoredRun) -> str | None:
    """Return the phone error rates of a recogniser run: chosen clips, rejected clips, and clips with another text."""
    positions = {
        "chosen": "for chosen clips",
        "rejected": "for rejected clips",
        "other": "when compared with the text of another clip",
    }
    error_rates = {side: run.results.get(f"phone_error/{side}") for side in positions}
    recognised = [f"{compact(error)} {positions[side]}" for side, error in error_rates.items() if error is not None]
    if not recognised:
        return None
    return f"Phone error rate of the recogniser on held-out clips: {', '.join(recognised)}."
