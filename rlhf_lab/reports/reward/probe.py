"""Section of `rm_probe`: what a reward model represents, and what its score pays for, one row per attribute."""

from __future__ import annotations

from rlhf_lab.reports.sections import PageSection, ReportTable
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact

NOTE = (
    "Read from the reward model: correlation of an attribute with its prediction by a linear probe of the last hidden "
    "state, on prompts that the probe was not fitted on. Read before: the same for the policy that the reward model "
    "was trained from. Effect on the score: change of the score per standard deviation of the attribute among "
    "responses to one prompt, in standard deviations of the score, at equal gold if gold is known. An attribute that "
    "is represented need not have an effect. 95 % intervals, clustered by prompt."
)
COLUMNS = {"probe/": "read from the reward model", "probe_before/": "read before", "effect/": "effect on the score"}


def probes(run: StoredRun) -> PageSection | None:
    """Return the table of attributes, the largest effect first after gold; None for a run without probes."""
    first = next(iter(COLUMNS))
    attributes = [name.removeprefix(first) for name in run.results if name.startswith(first)]
    if not attributes:
        return None

    def rank(attribute: str) -> tuple[bool, float]:
        effect = run.results.get(f"effect/{attribute}")
        return attribute != "gold", -abs(effect.mean) if effect else 0.0

    rows = []
    for attribute in sorted(attributes, key=rank):
        estimates = [run.results.get(f"{prefix}{attribute}") for prefix in COLUMNS]
        rows.append((attribute.replace("_", " "), *(compact(each) if each else "" for each in estimates)))
    table = ReportTable(("attribute", *COLUMNS.values()), rows, "left fold")
    return PageSection("What the reward model represents, and what its score pays for", NOTE, table=table)
