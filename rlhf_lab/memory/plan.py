"""The plan of one stage: bytes of every model copy on one process, and the most that each phase of the work needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from rlhf_lab.memory import copies as held
from rlhf_lab.memory.copies import SCORING_TOKENS, Copy
from rlhf_lab.memory.devices import work_of
from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import STRATEGIES, State, Training, frozen_state, gathered_bytes, trained_state
from rlhf_lab.memory.work import (
    Arithmetic,
    Attention,
    Pass,
    Rows,
    Sampling,
    divergence_bytes,
    sampling,
    score_bytes,
    update_peak,
)
from rlhf_lab.stages.artifacts import Stage


@dataclass(frozen=True)
class Line:
    """One model copy on one process.

    Attributes:
        work: of its forward and backward pass; None for a frozen model.
        away: it lies in host memory between passes, and is on the device for a pass.
        gathered: bytes of divided weights that are whole in a pass without gradient.
    """

    copy: Copy
    state: State
    work: Pass | None = None
    away: bool = False
    gathered: int = 0


@dataclass
class StagePlan:
    """What one process of a stage holds.

    Attributes:
        lines: the model copies.
        phases: phase → most bytes in it, all resident weights and the optimiser state included.
        rows: of the largest micro-batch; None for a stage that trains nothing.
        sampler: what sampling needs; None without.
    """

    stage: Stage
    processes: int
    training: Training
    lines: list[Line]
    phases: dict[str, int] = field(default_factory=dict)
    rows: Rows | None = None
    sampler: Sampling | None = None

    @property
    def recipe(self) -> str:
        return self.stage.recipe

    @property
    def peak(self) -> int:
        """Bytes of the largest phase."""
        return max(self.phases.values())

    @cached_property
    def floor(self) -> int:
        """Bytes that are certain: at an optimiser step all weights, gradients and moments exist at once."""
        if self.stage.config.engine != "native":
            return self.resident
        return self.always + sum(line.state.passing for line in self.lines)

    @property
    def resident(self) -> int:
        """Weights that are on the device all the time."""
        return sum(line.state.weights for line in self.lines if not line.away)

    @property
    def always(self) -> int:
        """What is on the device from the second step on, whatever is computed."""
        return sum(line.state.always for line in self.lines if not line.away)


def plan_stage(stage: Stage, processes: int = 1, *, cuda: bool = False) -> StagePlan:
    """The plan of one stage on one of `processes` processes. Raises ConfigError where a model's shape is unknown."""
    training, strategy = held.training(stage), held.strategy(stage)
    how = arithmetic(stage, cuda)
    models = held.copies(stage)
    trains = any(model.trained for model in models)
    rows = held.micro_rows(stage, processes) if trains else None
    if rows and (strategy in _ALIKE or not stage.config.algorithm.shares_prompts):
        rows = rows.alone()
    lines = [_line(stage, model, training, strategy, processes, rows, how) for model in models]
    found = StagePlan(stage, processes, training, lines, rows=rows)
    always = found.always
    if rows:
        accumulates = held.step_rows(stage, processes).rows > rows.rows
        found.phases["update"] = always + _update(lines, accumulates)
    found.sampler = _sampler(stage, models)
    if found.sampler:
        whole = held.whole_copy(models, training, strategy, processes)
        found.phases["sampling"] = always + whole + found.sampler.total
    scoring = max(_passes(stage, lines, how), default=0)
    if scoring:
        found.phases["scoring"] = always + scoring
    found.phases = found.phases or {"loaded": always}
    return found


_ALIKE = ("fsdp_grad_op", "fsdp_full", "zero2", "zero3")
"""Strategies whose processes must compute alike: they never share a prompt."""


def arithmetic(stage: Stage, cuda: bool) -> Arithmetic:
    """How the stage's passes are computed."""
    written: Any = getattr(stage.config.model, "attention", "auto")
    attention: Attention = "sdpa" if written == "auto" else written  # every family with a memory plan can have sdpa
    return Arithmetic(stage.config.runtime.dtype, attention, stage.config.sharding.checkpointing, cuda)


def _line(
    stage: Stage, model: Copy, training: Training, strategy: str, processes: int, rows: Rows | None, how: Arithmetic
) -> Line:
    divided = processes > 1 and STRATEGIES[strategy].weights
    gathered = gathered_bytes(model.shape, strategy, training.precision) if divided else 0
    if model.trained and rows:
        training = replace(training, rank=0) if model.whole else training
        state = trained_state(model.shape, training, strategy, processes)
        work = work_of(model.shape, rows, how, training, strategy, processes)
        return Line(model, state, work, gathered=gathered)
    where = stage.config.sharding.reference
    if not model.reference:
        return Line(model, frozen_state(model.shape))
    if where == "sharded" and divided:
        weights = frozen_state(model.shape).weights
        return Line(
            model, State(-(-weights // processes)), gathered=gathered_bytes(model.shape, _REFERENCE, how.precision)
        )
    halved = processes > 1 and STRATEGIES[strategy].rooted and training.precision == "bfloat16"
    return Line(model, frozen_state(model.shape, halved=halved), away=where == "offload")


_REFERENCE = "fsdp_full"
"""How a reference is divided, whatever the policy does."""


def _update(lines: list[Line], accumulates: bool) -> int:
    """Most bytes of a forward and backward pass. Models that do not share one take turns; their gradients stay."""
    trained = [line for line in lines if line.work]
    gradients = sum(line.state.passing for line in trained)
    most = 0
    for turn in sorted({line.copy.together for line in trained}):
        part = [line for line in trained if line.copy.together == turn]
        own = sum(line.state.passing for line in part)
        copies = sum(line.state.copy for line in part)
        earlier = 0 if accumulates else sum(line.state.passing for line in trained if line.copy.together < turn)
        peak = update_peak([x.work for x in part if x.work], copies, own, accumulates=accumulates)
        most = max(most, peak + earlier + (gradients - own if accumulates else 0))
    return most


def _sampler(stage: Stage, models: list[Copy]) -> Sampling | None:
    """The sampler's own memory; it decodes one policy."""
    batch, rollout = held.sampled(stage), stage.config.rollout
    if batch is None:
        return None
    shape = next((m.shape for m in models if not m.shape.outputs), held.policy_shape(stage))
    each = 2 if rollout.dtype == "bfloat16" else 4
    return sampling(shape, *batch, rollout.max_prompt_tokens, rollout.max_new_tokens, each)


def _passes(stage: Stage, lines: list[Line], how: Arithmetic) -> Iterator[int]:
    """Bytes of each pass without gradient, a model that lies in host memory included."""
    settings, exact = stage.config.algorithm, Arithmetic("float32", how.attention, cuda=how.cuda)
    budget = getattr(settings, "micro_batch_tokens", 0) or SCORING_TOKENS
    away = sum(line.state.weights for line in lines if line.away)
    for line in lines:
        shape = line.copy.shape
        if line.copy.reference or (settings.trains_on_reward and line.copy.trained):
            yield away + line.gathered + score_bytes(shape, held.scored_rows(stage, budget), how)
        elif shape.outputs and not line.copy.trained:
            yield score_bytes(shape, held.scored_rows(stage, SCORING_TOKENS), exact)
    if "evaluation" in settings.uses and settings.compares_policies:
        tokens = min(SCORING_TOKENS, _evaluated_tokens(stage))
        yield away + divergence_bytes(_policy(lines), held.scored_rows(stage, tokens), exact)


def _evaluated_tokens(stage: Stage) -> int:
    """Padded tokens of all replies to held-out prompts."""
    rollout, settings = stage.config.rollout, stage.config.evaluation
    width = rollout.max_prompt_tokens + rollout.max_new_tokens
    return settings.prompts * settings.samples_per_prompt * width


def _policy(lines: list[Line]) -> ModelShape:
    return next(line.copy.shape for line in lines if not line.copy.shape.outputs)
