"""Report figures of the components of a speech reward: acoustic features and recognised phones."""

from __future__ import annotations

from rlhf_lab.reports.reward.card import parts_section
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact

ACOUSTICS = (
    ("feature_spearman/", "Rank correlation of features with the truth, held-out clips", "Spearman's ρ"),
    ("feature_gain/", "Accuracy lost when a feature is left out", "held-out pair accuracy"),
    ("phone_error/", "Phone errors of the recogniser, held-out clips", "errors per phone"),
)


def acoustics(run: StoredRun) -> PageSection | None:
    return parts_section(run, ACOUSTICS)


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
