"""Draw the evidence of the audit against the policies of two runs, for docs/policy_optimisation.md.

    python tests/campaign/audit_figure.py HEALTHY HACKED --out docs/results/audit_runs.svg

HEALTHY and HACKED are directories of runs with `reward.audit.labels_per_iteration` above 0, whose gold is above and
below that of the start policy at the end.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from rlhf_lab.core.files import read_jsonl, write_text
from rlhf_lab.figures.charts import Point, Series, curves
from rlhf_lab.figures.layers import Chart
from rlhf_lab.figures.palette import GREY
from rlhf_lab.figures.render import plot_files
from rlhf_lab.monitoring.settings import AUDIT_TRACE

ALPHA = 0.05


def evidence(runs: Mapping[str, Path]) -> Chart:
    """Return the figure: e-value against comparisons, one line per run, with the threshold of an alarm.

    Args:
        runs: name of a line → run directory.
    """
    lines, most = [], 0.0
    for colour, (name, directory) in enumerate(runs.items()):
        points = []
        for row in read_jsonl(directory / AUDIT_TRACE):
            points.append(Point(row["labels"], math.log10(row["e_value"])))
        lines.append(Series(name, points, colour))
        most = max(most, points[-1].x)
    threshold = math.log10(1 / ALPHA)
    lines.append(Series("alarm", [Point(0, threshold), Point(most, threshold)], GREY))
    return curves(
        lines,
        title="Evidence that a policy is worse than its start",
        x_label="labels bought",
        y_label="log10 of the e-value",
        size=(480, 220),
        legend=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("healthy", type=Path)
    parser.add_argument("hacked", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    chart = evidence({"gold rises": arguments.healthy, "gold falls": arguments.hacked})
    svg, _ = plot_files(chart)
    write_text(arguments.out, svg)


if __name__ == "__main__":
    main()
