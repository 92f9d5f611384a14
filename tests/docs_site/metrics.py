"""The page of metrics: every number that a stage writes, by the package that declares it."""

from __future__ import annotations

import inspect
from importlib import import_module

from docs_site.page import Page, code, plain, table
from rlhf_lab.core.metrics import Metric
from rlhf_lab.core.packs import packs


def page() -> Page:
    """Return the page of all metrics."""
    text = (
        "# Metrics\n\nNumbers in `metrics.jsonl`, `evaluation.jsonl` and `result.json`. "
        "[Numbers](/docs/numbers.md) explains how to read them. `<name>` stands for a name that the run defines.\n"
    )
    for pack in packs():
        for module in sorted(pack.modules_called("metrics.py")):
            text += _section(module)
    return Page("reference/metrics.md", "Metrics", text)


def _section(module: str) -> str:
    constants = [value for name, value in vars(import_module(module)).items() if name.isupper()]
    metrics = [metric for value in constants if isinstance(value, tuple) for metric in value]
    rows = [
        [code(metric.name), plain(metric.title), plain(metric.meaning), metric.unit, metric.better]
        for metric in metrics
        if isinstance(metric, Metric)
    ]
    summary = (inspect.getdoc(import_module(module)) or "").partition("\n\n")[0]
    title = module.removeprefix("rlhf_lab.").removesuffix(".metrics")
    return f"\n## {title}\n\n{plain(summary)}\n\n{table(['name', 'title', 'meaning', 'unit', 'better'], rows)}"
