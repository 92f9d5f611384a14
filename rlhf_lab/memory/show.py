"""The plan as people read it: a table per stage, where each byte comes from, and what would make it fit."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from rlhf_lab.memory import copies as held
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
    title = f"{plan.recipe}: bytes per process" + (f", {plan.processes} processes" if plan.processes > 1 else "")
    table = Table(title=title, title_justify="left")
    table.add_column("", style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for line in plan.lines:
        table.add_row(*_cells(line))
    if plan.sampler:
        sampler = plan.sampler
        table.add_row("sampler", "", *(size(x) for x in (sampler.weights, 0, 0, 0, 0, sampler.logits, sampler.cache)))
    return table


def _cells(line: Line) -> list[str]:
    state, work = line.state, line.work
    name = f"{line.copy.name} (host)" if line.away else line.copy.name
    kept = (work.activations, work.logits) if work else (0, 0)
    numbers = (state.weights, state.copy, state.gradients, state.optimizer, *kept, 0)
    return [name, number(line.copy.shape.parameters), *map(size, numbers)]


def stage_lines(plan: StagePlan, device: Device) -> list[str]:
    """The phases, the largest of them against the device, and the derivation."""
    share = device.share(plan.processes)
    phases = ", ".join(f"{name} {size(most)}" for name, most in plan.phases.items())
    verdict = "memory unknown" if share is None else "fits" if plan.peak <= share else "does not fit"
    whole = f" of {size(share)} ({escape(device.name)}): {verdict}" if share else f": {verdict}"
    return [
        f"peak {size(plan.peak)}{whole}; most in each phase: {phases}",
        *derivation(plan),
    ]


def derivation(plan: StagePlan) -> list[str]:
    """Where the numbers come from."""
    training, found = plan.training, []
    if plan.rows:
        parts = bytes_per_parameter(training)
        terms = " + ".join(f"{name} {count}" for name, count in parts.items())
        found.append(f"per trained parameter of a matrix: {terms} = {sum(parts.values())} B{_adapter(plan, training)}")
        rows, logits = plan.rows, sum(line.work.logits for line in plan.lines if line.work)
        shared = f", prompts computed once: {rows.prompts}" if rows.shared else ""
        found.append(
            f"micro-batch: {rows.rows} rows of {rows.prompt} + {rows.reply} tokens at their longest{shared}; "
            f"{rows.tokens} tokens in each block" + (f", {rows.targets} through the head" if logits else "")
        )
        for line in plan.lines:
            if line.work:
                each = line.work.activations / rows.tokens
                found.append(f"{line.copy.name}: {line.work.activations:,} B activations, {each:,.0f} per token")
    if plan.sampler:
        prompts, group = held.sampled(plan.stage) or (0, 0)
        found.append(f"sampler: {prompts} prompts × {group} replies at once, keys and values in float32")
    return found


def _adapter(plan: StagePlan, training: Training) -> str:
    if not training.rank:
        return ""
    trained = sum(training.trained(line.copy.shape) for line in plan.lines if line.work and not line.copy.whole)
    return f"; an adapter of rank {training.rank} trains {number(trained)} parameters of its models"
