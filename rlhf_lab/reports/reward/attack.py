"""Section of a run that attacked a reward: what each exploit gains, and the responses that gain most."""

from __future__ import annotations

from rlhf_lab.core.files import read_jsonl
from rlhf_lab.figures.charts import Level, dot_chart
from rlhf_lab.reports.sections import PageSection, ReportTable, figure_boxes
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.statistics.estimates import largest_first

PREFIXES = {"reward": ("exploit_gain/", "trained_gain/"), "gold": ("exploit_gold/", "trained_gold/")}
"""Kind of gain → prefixes of its metrics; the second one is that of policies trained on the reward."""
SEARCH = {"reward": "attack_gain", "gold": "attack_gold"}
GAINS = {"reward": "gain", "gold": "gold"}
"""Name of a gain → its column in transcripts.jsonl."""
SHOWN = 8
"""Number of responses in the table."""
NOTE = (
    "Means over prompts with 95 % interval, in standard deviations over start responses. The search edits the start "
    "response and sees only the reward. The fixed exploits add nothing to a response, so a good reward does not pay "
    "for them. A policy that was trained on the reward is named by its role. All responses: `transcripts.jsonl`; for a "
    "model card: `card.md`."
)


def attack(run: StoredRun) -> PageSection | None:
    """Return the section of an attack; None for a run that attacked nothing."""
    if "attack_gain" not in run.results:
        return None
    figures = []
    for what, title in (("reward", "What does the reward pay?"), ("gold", "What is it worth?")):
        if levels := attack_levels(run, what):
            chart = dot_chart(levels, title=title, x_label=f"{what} gained, sd of start responses")
            figures += figure_boxes((title, "", chart))
    headings = ("attack and gains", "start response", "response of the attack")
    return PageSection(
        "Attack on the reward",
        NOTE,
        table=ReportTable(headings, largest_gains(run), "left fold"),
        template=f"{__package__}:card.html.j2",
        values={"rows": [figures]},
    )


def attack_levels(run: StoredRun, what: str) -> list[Level]:
    """Return the gains of the search, then of exploits and trained policies, largest first, for "reward" or "gold"."""
    levels = []
    if SEARCH[what] in run.results:
        levels.append(Level("search", run.results[SEARCH[what]]))
    others = {name: gain for name, gain in run.results.items() if name.startswith(PREFIXES[what])}
    for name in largest_first(others):
        kind, _, attack = name.partition("/")
        title = f"policy {attack}" if kind.startswith("trained") else attack
        levels.append(Level(title.replace("_", " "), run.results[name]))
    return levels


def largest_gains(run: StoredRun) -> list[tuple[str, str, str]]:
    """Return the responses that gain most, one per attack, as rows of text."""
    rows: dict[str, tuple[str, str, str]] = {}
    for row in read_jsonl(run.path / "transcripts.jsonl"):
        known = [f"{what} {row[key]:+.2f}" for what, key in GAINS.items() if row[key] is not None]
        attack = row["attack"].replace("trained/", "policy ").replace("_", " ")
        title = f"{attack}: {', '.join(known).replace('-', '−')}"
        rows.setdefault(row["attack"], (title, row["start"], row["response"]))
    return list(rows.values())[:SHOWN]
