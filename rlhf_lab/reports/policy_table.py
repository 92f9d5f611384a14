"""The table of policies on the console: one table where it fits, else turned or in blocks, so that no number wraps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rlhf_lab.core.metrics import catalogue

UNLIMITED = 100_000
"""Columns of a terminal on which every table fits: what a table would like to have is measured there."""


class PolicyTable:
    """Every policy with its metrics, each with the half-width of its 95 % interval.

    Args:
        policies: {"name", "metrics"} each, as in result.json.
        columns: metric → title; those that no policy has are left out. None: every metric that has a `column`.
    """

    def __init__(self, policies: Sequence[Mapping[str, Any]], columns: Mapping[str, str] | None = None):
        measured = dict.fromkeys(name for policy in policies for name in policy["metrics"])
        shown = [metric for metric in catalogue().values() if metric.column]
        columns = columns or {name: title for metric in shown for name, title in metric.columns(measured).items()}
        self.policies = policies
        self.columns = {name: title for name, title in columns.items() if name in measured}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def fits(table: Table) -> bool:
            wide = options.update_width(UNLIMITED)
            return Measurement.get(console, wide, table).maximum <= options.max_width

        full_table = self._rows_are_policies(list(self.columns))
        transposed = self._columns_are_policies()
        if fits(full_table) or not self.columns:
            yield full_table
        elif fits(transposed):
            yield transposed
        else:  # tables below one another, each with as many metrics as fit
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
        table.add_column("policy", style="bold", min_width=max(len(policy["name"]) for policy in self.policies))
        for name in metrics:
            table.add_column(self.columns[name], justify="right", overflow="fold")  # wrapped where needed, never cut
        for policy in self.policies:
            table.add_row(policy["name"], *(number(policy["metrics"].get(name)) for name in metrics))
        return table

    def _columns_are_policies(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")  # no lines: five policies fit 80 columns
        table.add_column("", style="bold")
        for policy in self.policies:
            table.add_column(policy["name"], justify="right", overflow="fold")
        for name, title in self.columns.items():
            table.add_row(title, *(number(policy["metrics"].get(name)) for policy in self.policies))
        return table

    def _caption(self) -> str:
        # The counts of the evaluation, as the first KL states them.
        kl = next((policy["metrics"]["kl"] for policy in self.policies if "kl" in policy["metrics"]), None)
        size = "" if kl is None else f"; {kl.get('n')} replies, {kl.get('clusters')} prompts"
        lines = [f"± half of the 95 % interval, clustered by prompt{size}"]
        if "win_rate" in self.columns and not any("gold" in policy["metrics"] for policy in self.policies):
            lines.append("win rate: by the training reward, for there is no gold here")
        return "\n".join(lines)


def number(value: Any) -> str:
    """A stored number or estimate in a few characters; a lopsided interval, such as a rate near 0, as [low, high]."""
    if isinstance(value, dict):
        if value.get("mean") is None:
            return "–"
        if value.get("low") is None or value.get("high") is None:
            return f"{value['mean']:.3g}"
        half = (value["high"] - value["low"]) / 2
        lopsided = abs(value["high"] + value["low"] - 2 * value["mean"]) > half
        if lopsided:
            return f"{value['mean']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"
        return f"{value['mean']:.2f} ±{half:.2f}"
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
