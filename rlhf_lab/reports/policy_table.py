"""Table of policies on the console: one table if it fits, else transposed or in blocks, so that no number wraps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rlhf_lab.core.metrics import catalogue
from rlhf_lab.data.rows import is_missing
from rlhf_lab.training.settings import StageSettings
from rlhf_lab.training.stage_spec import ClusterUnit

UNLIMITED = 100_000
"""Terminal width, in columns, on which every table fits; used to measure the width that a table needs."""


class PolicyTable:
    """Table of every policy with its metrics, each with the half-width of its 95 % interval.

    Args:
        policies: {"name", "metrics"} of each policy, as in result.json.
        columns: metric → title; metrics that no policy has are left out. None shows every metric that has a `column`.
        clusters: unit by which the intervals are clustered.
    """

    def __init__(
        self,
        policies: Sequence[Mapping[str, Any]],
        columns: Mapping[str, str] | None = None,
        *,
        clusters: ClusterUnit = StageSettings.evidence.clusters,
    ):
        measured = dict.fromkeys(name for policy in policies for name in policy["metrics"])
        if not columns:
            shown = [metric for metric in catalogue().values() if metric.column]
            columns = {name: title for metric in shown for name, title in metric.columns(measured).items()}
        self.policies = policies
        self.clusters = clusters
        self.columns = {name: title for name, title in columns.items() if name in measured}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def fits(table: Table) -> bool:
            # On the actual width, Rich would measure a table that is already wrapped.
            wide = options.update_width(UNLIMITED)
            return Measurement.get(console, wide, table).maximum <= options.max_width

        full_table = self._rows_are_policies(list(self.columns))
        transposed = self._columns_are_policies()
        if fits(full_table) or not self.columns:
            yield full_table
        elif fits(transposed):
            yield transposed
        else:  # tables below each other, each with as many metrics as fit
            block: list[str] = []
            for name in self.columns:
                if block and not fits(self._rows_are_policies([*block, name])):
                    yield self._rows_are_policies(block)
                    block = []
                block.append(name)
            yield self._rows_are_policies(block)
        yield Text(self._caption(), style="dim italic")

    def _rows_are_policies(self, metrics: Sequence[str]) -> Table:
        table = Table()
        longest_name = max(len(policy["name"]) for policy in self.policies)
        table.add_column("policy", style="bold", min_width=longest_name)
        for name in metrics:
            table.add_column(self.columns[name], justify="right", overflow="fold")  # wrap if necessary, never cut
        for policy in self.policies:
            values = [number(policy["metrics"].get(name)) for name in metrics]
            table.add_row(policy["name"], *values)
        return table

    def _columns_are_policies(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")  # without lines, five policies fit 80 columns
        table.add_column("", style="bold")
        for policy in self.policies:
            table.add_column(policy["name"], justify="right", overflow="fold")
        for name, title in self.columns.items():
            values = [number(policy["metrics"].get(name)) for policy in self.policies]
            table.add_row(title, *values)
        return table

    def _caption(self) -> str:
        """Return the caption: meaning of the intervals, counts, and the judge of win rates."""
        lines = [f"± half of the 95 % interval, clustered by {self.clusters.name}{self._sizes()}"]
        if "win_rate" in self.columns and not any("gold" in policy["metrics"] for policy in self.policies):
            lines.append("win rate: by the training reward, because there is no gold here")
        return "\n".join(lines)

    def _sizes(self) -> str:
        """Return the n and clusters that most numbers have, then the metrics with other counts.

        Empty if no number has counts.
        """
        from rlhf_lab.results.wording import usual_size  # imported here because it imports scipy
        from rlhf_lab.statistics.estimates import Estimate

        shown = [(name, policy["metrics"].get(name)) for name in self.columns for policy in self.policies]
        estimates = [(name, Estimate.from_dict(value)) for name, value in shown if isinstance(value, Mapping)]
        usual = usual_size(estimate for _, estimate in estimates)
        if usual is None:
            return ""
        others: dict[str, list[str]] = {}  # title → the other counts, without repetition
        for name, estimate in estimates:
            own = f"{estimate.n} / {estimate.clusters}"
            if estimate.n and (estimate.n, estimate.clusters) != usual:
                sizes = others.setdefault(self.columns[name], [])
                sizes += [own] if own not in sizes else []
        n, clusters = usual
        parts = [f"{n} responses, {clusters} {self.clusters.plural}"]
        parts += [f"{title}: {' or '.join(sizes)}" for title, sizes in others.items()]
        return "; ".join(["", *parts])


def number(value: Any) -> str:
    """Format a stored number or estimate briefly; an asymmetric interval, such as a rate near 0, as [low, high]."""
    if isinstance(value, dict):
        if value.get("mean") is None:
            return "–"
        if value.get("low") is None or value.get("high") is None:
            return f"{value['mean']:.3g}"
        mean, low, high = (value[name] for name in ("mean", "low", "high"))
        half = (high - low) / 2
        is_asymmetric = abs(high + low - 2 * mean) > half
        return f"{mean:.2f} [{low:.2f}, {high:.2f}]" if is_asymmetric else f"{mean:.2f} ±{half:.2f}"
    if is_missing(value):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
