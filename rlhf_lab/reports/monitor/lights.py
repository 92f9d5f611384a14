"""Warning lights of a run: signs of reward hacking in the last policy against the first."""

from __future__ import annotations

from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.gains import light_note
from rlhf_lab.results.gains import lights as lights_of
from rlhf_lab.results.rundir import StoredRun

NOTE = (
    "Responses to held-out prompts, the last policy against the first, paired by prompt; p after Holm over these "
    "lights. Red is observed harm: gold fell, or responses are padded or degenerate (garbled). Yellow is a symptom."
)


def lights(run: StoredRun) -> PageSection | None:
    """Return the section of the warning lights; None if the run has fewer than two policies."""
    shown = lights_of(run)
    if not shown:
        return None
    values = {"lights": shown, "remark": light_note(shown)}
    return PageSection("Signs of reward hacking", NOTE, template=f"{__package__}:lights.html.j2", values=values)
