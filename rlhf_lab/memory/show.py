"""Output of a memory plan: a table per stage, and the derivation of its numbers."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from rlhf_lab.memory import copies
from rlhf_lab.memory.devices import GIB, Device
from rlhf_lab.memory.plan import PlanLine, StagePlan
from rlhf_lab.memory.state import STRATEGIES, Training, bytes_per_parameter

COLUMNS = ("parameters", "weights", "copies", "gradients", "optimizer", "activations", "logits", "KV cache")


def size(count: int | float | None) -> str:
    """Format bytes in GiB or MiB with three digits; '–' for zero or None."""
    if not count:
        return "–"
    is_large = abs(count) >= 0.1 * GIB  # 100 MiB, so that no size needs more than three digits
    unit, name = (GIB, "GiB") if is_large else (2**20, "MiB")
    value = count / unit
    return f"{value:.0f} {name}" if value >= 100 else f"{value:.3g} {name}"


def number(count: int) -> str:
    """Format a number of parameters as 124M or 7.6B."""
    units = ((10**9, "B"), (10**6, "M"), (10**3, "k"))
    for unit, name in units:
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return str(count)


def stage_table(plan: StagePlan) -> Table:
    """Return a table of the memory of each model copy on one process, and of the sampler."""
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
        # in the order of COLUMNS
        sizes = (plan.sampler.weights, 0, 0, 0, 0, plan.sampler.logits, plan.sampler.cache)
        table.add_row("sampler", "", *map(size, sizes))
    return table


def _cells(line: PlanLine) -> list[str]:
    state = line.state
    work = line.work
    name = line.copy.name
    if line.away:
        name += " (host)"
    if line.copy.beside is not None:
        name += " (policy's base)"
    activations_and_logits = (work.activations, work.logits) if work else (0, 0)
    # in the order of COLUMNS; only the sampler has a KV cache
    sizes = (state.weights, state.copy, state.gradients, state.optimizer, *activations_and_logits, 0)
    return [name, number(line.copy.shape.parameters), *map(size, sizes)]


def stage_lines(plan: StagePlan, device: Device) -> list[str]:
    """Return lines about the phases, the peak compared with the device, and the derivation."""
    if plan.stage.config.algorithm.resources.in_worker:
        return ["not planned: the policy is trained and sampled in a worker process, whose memory is not known here"]
    if not plan.has_models:
        return ["no language model is loaded"]
    memory_limit = device.share(plan.processes)
    phases = ", ".join(f"{name} {size(largest)}" for name, largest in plan.phases.items())
    verdict = "memory unknown"
    if memory_limit is not None:
        verdict = "fits" if plan.peak <= memory_limit else "does not fit"
    available = f" of {size(memory_limit)} ({escape(device.name)})" if memory_limit else ""
    return [f"peak {size(plan.peak)}{available}: {verdict}; peak of each phase: {phases}", *derivation(plan)]


def derivation(plan: StagePlan) -> list[str]:
    """Return lines that explain the numbers of the plan."""
    training = plan.training
    rows = plan.rows
    lines = []
    if rows:
        byte_counts = bytes_per_parameter(training, master=STRATEGIES[copies.strategy(plan.stage)].master)
        terms = " + ".join(f"{name} {count}" for name, count in byte_counts.items())
        total = sum(byte_counts.values())
        lines.append(f"per trained parameter of a matrix: {terms} = {total} B{_adapter_text(plan, training)}")
        shared = f", prompts computed once: {rows.prompts}" if rows.shared else ""
        logits = sum(line.work.logits for line in plan.lines if line.work)
        through_head = f", {rows.targets} through the head" if logits else ""
        lines.append(
            f"micro-batch: {rows.rows} rows of at most {rows.prompt} + {rows.response} tokens{shared}; "
            f"{rows.tokens} tokens in each block{through_head}"
        )
        for line in plan.lines:
            if line.work:
                activations = line.work.activations
                per_token = activations / rows.tokens
                lines.append(f"{line.copy.name}: {activations:,} B activations, {per_token:,.0f} per token")
    for line in plan.lines:
        if line.copy.apart:
            lines.append(f"{line.copy.name}: an adapter that needs its own base, {line.copy.apart}")
    batch = copies.sampled(plan.stage)
    if plan.sampler and batch:
        dtype = "bfloat16" if plan.sampler.bytes_each == 2 else "float32"
        lines.append(f"sampler: {batch.prompts} prompts × {batch.group} responses at once, KV cache in {dtype}")
    return lines


def _adapter_text(plan: StagePlan, training: Training) -> str:
    """Return the number of parameters that an adapter trains as text; empty without one."""
    if not training.rank:
        return ""
    trained = sum(training.trained(line.copy.shape) for line in plan.lines if line.work)
    return f"; an adapter of rank {training.rank} trains {number(trained)} parameters of its models"
