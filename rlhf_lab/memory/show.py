"""The plan in print: a table per stage, and how its numbers are derived."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from rlhf_lab.memory import copies
from rlhf_lab.memory.device import Device
from rlhf_lab.memory.devices import GIB
from rlhf_lab.memory.plan import Line, StagePlan
from rlhf_lab.memory.state import Training, bytes_per_parameter

COLUMNS = ("parameters", "weights", "copies", "gradients", "optimiser", "activations", "logits", "KV cache")


def size(count: int | float | None) -> str:
    """Bytes in GiB or MiB, three digits; '–' for nothing."""
    if not count:
        return "–"
    unit, name = (GIB, "GiB") if abs(count) >= 0.1 * GIB else (2**20, "MiB")
    value = count / unit
    return f"{value:.0f} {name}" if value >= 100 else f"{value:.3g} {name}"


def number(count: int) -> str:
    """Parameters as 124M or 7.6B."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return str(count)


def stage_table(plan: StagePlan) -> Table:
    """Model copies × what each holds on one process, then what comes on top in sampling and scoring."""
    title = f"{plan.recipe}: bytes per process"
    if plan.processes > 1:
        title += f", {plan.processes} processes"
    table = Table(title=title, title_justify="left")
    table.add_column("", style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for line in plan.lines:
        table.add_row(*_cells(line))
    if plan.sampler:
        sizes = (plan.sampler.weights, 0, 0, 0, 0, plan.sampler.logits, plan.sampler.cache)  # in the order of COLUMNS
        table.add_row("sampler", "", *map(size, sizes))
    return table


def _cells(line: Line) -> list[str]:
    """Cells of a model copy, in the order of COLUMNS."""
    state = line.state
    work = line.work
    name = line.copy.name
    if line.away:
        name += " (host)"
    if line.copy.beside is not None:
        name += " (policy's base)"
    activations_and_logits = (work.activations, work.logits) if work else (0, 0)
    sizes = (state.weights, state.copy, state.gradients, state.optimizer, *activations_and_logits, 0)
    return [name, number(line.copy.shape.parameters), *map(size, sizes)]


def stage_lines(plan: StagePlan, device: Device) -> list[str]:
    """The phases, the largest of them against the device, and the derivation."""
    share = device.share(plan.processes)
    phases = ", ".join(f"{name} {size(most)}" for name, most in plan.phases.items())
    verdict = "memory unknown"
    if share is not None:
        verdict = "fits" if plan.peak <= share else "does not fit"
    available = f" of {size(share)} ({escape(device.name)})" if share else ""
    return [
        f"peak {size(plan.peak)}{available}: {verdict}; most in each phase: {phases}",
        *derivation(plan),
    ]


def derivation(plan: StagePlan) -> list[str]:
    """Where the numbers come from."""
    training = plan.training
    rows = plan.rows
    lines = []
    if rows:
        byte_counts = bytes_per_parameter(training)
        terms = " + ".join(f"{name} {count}" for name, count in byte_counts.items())
        total = sum(byte_counts.values())
        lines.append(f"per trained parameter of a matrix: {terms} = {total} B{_adapter_text(plan, training)}")
        shared = f", prompts computed once: {rows.prompts}" if rows.shared else ""
        logits = sum(line.work.logits for line in plan.lines if line.work)
        through_head = f", {rows.targets} through the head" if logits else ""
        lines.append(
            f"micro-batch: {rows.rows} rows of {rows.prompt} + {rows.reply} tokens at their longest{shared}; "
            f"{rows.tokens} tokens in each block{through_head}"
        )
        for line in plan.lines:
            if line.work:
                activations = line.work.activations
                per_token = activations / rows.tokens
                lines.append(f"{line.copy.name}: {activations:,} B activations, {per_token:,.0f} per token")
    for line in plan.lines:
        if line.copy.apart:
            lines.append(f"{line.copy.name}: an adapter, and has a base of its own, {line.copy.apart}")
    batch = copies.sampled(plan.stage)
    if plan.sampler and batch:
        dtype = "bfloat16" if plan.sampler.bytes_each == 2 else "float32"
        lines.append(f"sampler: {batch.prompts} prompts × {batch.group} replies at once, keys and values in {dtype}")
    return lines


def _adapter_text(plan: StagePlan, training: Training) -> str:
    """How many parameters an adapter trains; empty without one."""
    if not training.rank:
        return ""
    trained = sum(training.trained(line.copy.shape) for line in plan.lines if line.work)
    return f"; an adapter of rank {training.rank} trains {number(trained)} parameters of its models"
