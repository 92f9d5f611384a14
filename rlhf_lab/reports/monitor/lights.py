"""The warning lights of a run: signs of reward hacking in the last policy against the first."""

from __future__ import annotations

from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.gains import light_remark
from rlhf_lab.results.gains import lights as lights_of
from rlhf_lab.results.rundir import Run

NOTE = (
    "Replies to held-out prompts, the last policy against the first, paired by prompt; p after Holm over these lights. "
    "Red is harm seen: gold fell, or replies are padded or garbled. Yellow is a symptom."
)


def lights(run: Run) -> PageSection | None:
    shown = lights_of(run)
    if not shown:
        return None
    values = {"lights": shown, "remark": light_remark(shown)}
    return PageSection("Signs of reward hacking", NOTE, template=f"{__package__}:lights.html.j2", values=values)
