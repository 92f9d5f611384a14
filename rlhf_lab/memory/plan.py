"""The memory plan of one stage: bytes of every model copy on one process, and the peak of each phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from rlhf_lab.memory import copies
from rlhf_lab.memory.copies import SCORING_TOKENS, Copy
from rlhf_lab.memory.devices import work_of
from rlhf_lab.memory.state import (
    STRATEGIES,
    WEIGHT,
    State,
    Training,
    ceil_div,
    frozen_state,
    gathered_bytes,
    trained_state,
)
from rlhf_lab.memory.work import (
    Attention,
    ComputePrecision,
    Pass,
    Rows,
    SamplerMemory,
    divergence_bytes,
    sampling,
    score_bytes,
    update_peak,
)
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.stages.artifacts import Stage


@dataclass(frozen=True)
class PlanLine:
    """One model copy on one process.

    Attributes:
        work: bytes of its forward and backward pass; None for a frozen model.
        away: True if it is kept in host memory and moved to the device for each pass.
        gathered: bytes of sharded weights that are full in a pass without gradient.
    """

    copy: Copy
    state: State
    work: Pass | None = None
    away: bool = False
    gathered: int = 0


@dataclass
class StagePlan:
    """Memory of one process of a stage.

    Attributes:
        phases: phase → its peak in bytes, including all resident weights and the optimizer state.
        rows: rows of the largest micro-batch; None for a stage that trains nothing.
        sampler: memory of the sampler; None for a stage that does not sample.
    """

    stage: Stage
    processes: int
    training: Training
    lines: list[PlanLine]
    phases: dict[str, int] = field(default_factory=dict)
    rows: Rows | None = None
    sampler: SamplerMemory | None = None

    @property
    def recipe(self) -> str:
        return self.stage.recipe

    @property
    def has_models(self) -> bool:
        """True if a language model is loaded in this process."""
        return bool(self.lines or self.sampler)

    @property
    def peak(self) -> int:
        """Bytes of the largest phase."""
        return max(self.phases.values())

    @cached_property
    def floor(self) -> int:
        """Minimum number of bytes: at an optimizer step all weights, gradients and optimizer states coexist."""
        if self.stage.config.engine != "native":
            return self.resident
        return self.resident_bytes + sum(line.state.gradient_bytes for line in self.lines)

    @property
    def resident(self) -> int:
        """Bytes of the weights that are always on the device."""
        return sum(line.state.weights for line in self.lines if not line.away)

    @property
    def resident_bytes(self) -> int:
        """Bytes on the device from the second step on, at any time."""
        return sum(line.state.resident_bytes for line in self.lines if not line.away)


def plan_stage(stage: Stage, processes: int = 1, *, cuda: bool = False) -> StagePlan:
    """Return the plan of a stage for one of `processes` processes. Raises ConfigError if a model's shape is unknown."""
    training = copies.training(stage)
    strategy = copies.strategy(stage)
    how = arithmetic(stage, cuda)
    models = copies.copies(stage)
    rows = copies.micro_rows(stage, processes) if any(model.trained for model in models) else None
    # flash attention concatenates rows, each with its own prompt
    repeats_prompts = strategy in _IN_STEP or how.attention == "flash_attention_2"
    if rows and (repeats_prompts or not stage.config.algorithm.resources.shares_prompts):
        rows = rows.alone()
    lines = [_plan_copy(stage, model, training, strategy, processes, rows, how) for model in models]
    plan = StagePlan(stage, processes, training, lines, rows=rows)
    # memory that no phase releases
    always = plan.resident_bytes
    if rows:
        # gradients of earlier micro-batches exist if a step has several of them
        accumulates = copies.step_rows(stage, processes).rows > rows.rows
        plan.phases["update"] = always + _update_bytes(lines, accumulates)
    full_bytes, full_block = copies.gathered_bytes_to_sample(stage, models, training, processes)
    policy_number = copies.full_number_bytes(training, strategy, processes)
    plan.sampler = _sampler(stage, models, policy_number, full_block)
    if plan.sampler:
        plan.phases["sampling"] = always + full_bytes + plan.sampler.total
    elif full_bytes and copies.sampled(stage):
        # vLLM gets the weights of a full copy of the sharded policy, which every process gathers
        plan.phases["sending weights"] = always + full_bytes
    scoring = max(_scoring_passes(stage, lines, how), default=0)
    if scoring:
        plan.phases["scoring"] = always + scoring
    # a stage that neither trains, samples nor scores only loads its models
    plan.phases = plan.phases or {"loaded": always}
    return plan


_IN_STEP = ("fsdp_grad_op", "fsdp_full", "zero2", "zero3")
"""Strategies under which all processes must run the same passes, so no process may split a batch into two passes."""


def arithmetic(stage: Stage, cuda: bool) -> ComputePrecision:
    """Return the precision, attention kernel and checkpointing of the stage's forward and backward passes."""
    configured: Any = getattr(stage.config.model, "attention", "auto")
    # `auto` is sdpa if a family supports it. Capped scores are always computed eagerly, see work.py.
    attention: Attention = "sdpa" if configured == "auto" else configured
    return ComputePrecision(copies.training(stage).precision, attention, stage.config.sharding.checkpointing, cuda)


def _plan_copy(
    stage: Stage,
    model: Copy,
    training: Training,
    strategy: str,
    processes: int,
    rows: Rows | None,
    how: ComputePrecision,
) -> PlanLine:
    """Return the plan's line for one model copy: the bytes of its state, and of a pass on its rows."""
    is_policy_sharded = processes > 1 and STRATEGIES[strategy].weights
    full_bytes = gathered_bytes(model.shape, strategy, training.precision) if is_policy_sharded else 0
    if model.trained and rows:
        state = trained_state(model.shape, training, strategy, copies.shards(stage, processes), beside=model.beside)
        work = work_of(model.shape, rows, how, training, strategy, processes)
        return PlanLine(model, state, work, gathered=full_bytes)
    if model.beside is not None:  # only the frozen values of its adapter and head are its own
        return PlanLine(model, State(WEIGHT * model.beside))
    where = stage.config.sharding.reference
    if not model.reference:
        return PlanLine(model, frozen_state(model.shape, stored=model.stored))
    if where == "sharded" and is_policy_sharded:
        weights = frozen_state(model.shape).weights
        full_in_pass = gathered_bytes(model.shape, _REFERENCE_STRATEGY, how.precision)
        own_weights = ceil_div(weights, copies.shards(stage, processes))
        return PlanLine(model, State(own_weights), gathered=full_in_pass)
    halved = processes > 1 and STRATEGIES[strategy].rooted and training.precision == "bfloat16"
    # FSDP2 trains with blocks in bfloat16, so the reference stores them in bfloat16 to compute the same
    state = frozen_state(model.shape, halved=halved, stored=model.stored)
    return PlanLine(model, state, away=where == "offload")


_REFERENCE_STRATEGY = "fsdp_full"
"""Strategy of a sharded reference, independent of the policy's strategy."""


def _update_bytes(lines: list[PlanLine], accumulates: bool) -> int:
    """Return the peak of a forward and backward pass in bytes.

    Models without a common backward pass take turns, and the gradients of earlier turns are kept.
    """
    trained = [line for line in lines if line.work]
    all_gradients = sum(line.state.gradient_bytes for line in trained)
    largest = 0
    for turn in sorted({line.copy.together for line in trained}):
        in_turn = [line for line in trained if line.copy.together == turn]
        gradients = sum(line.state.gradient_bytes for line in in_turn)
        weight_copies = sum(line.state.copy for line in in_turn)
        passes = [line.work for line in in_turn if line.work]
        peak = update_peak(passes, weight_copies, gradients, accumulates=accumulates)
        if accumulates:  # all models have gradients of earlier micro-batches
            other_gradients = all_gradients - gradients
        else:
            other_gradients = sum(line.state.gradient_bytes for line in trained if line.copy.together < turn)
        largest = max(largest, peak + other_gradients)
    return largest


def _sampler(stage: Stage, models: list[Copy], policy_number: int, full_block: int) -> SamplerMemory | None:
    """Return the memory of the built-in sampler; None for a stage that samples nothing or in other processes.

    Args:
        policy_number: bytes per number of the policy as the sampler reads it, if it is stored in float32.
        full_block: as in `work.sampling`.
    """
    batch = copies.sampled(stage)
    rollout = stage.config.rollout
    if batch is None or stage.config.algorithm.resources.in_worker:
        return None
    if isinstance(rollout, Vllm) and stage.config.engine == "native":
        return None
    # a shape with outputs has a scalar head, so it samples nothing
    language_models = (model.shape for model in models if not model.shape.outputs)
    shape = next(language_models, copies.policy_shape(stage))
    trained_fully = stage.config.algorithm.outputs.model and not stage.config.model.lora.rank
    in_place = not trained_fully and stage.config.model.stored("policy") != "float32"
    own = 2 if in_place and shape.own_decoder else policy_number
    bytes_each = {"model": own, "bfloat16": 2, "float32": 4}[rollout.dtype]
    return sampling(
        shape,
        batch.prompts,
        batch.group,
        rollout.max_prompt_tokens,
        copies.response_tokens(stage),
        bytes_each,
        refilled=batch.refilled,
        in_place=in_place,
        full_block=full_block,
    )


def _scoring_passes(stage: Stage, lines: list[PlanLine], how: ComputePrecision) -> Iterator[int]:
    """Yield the bytes of each pass without gradient, including models moved from host memory."""
    settings = stage.config.algorithm
    # reward models and the evaluation compute in float32, independent of the dtype of training
    exact = ComputePrecision("float32", how.attention, cuda=how.cuda)
    budget = getattr(settings, "micro_batch_tokens", 0) or SCORING_TOKENS
    # models in host memory are moved to the device together, for the pass that needs them
    away = sum(line.state.weights for line in lines if line.away)
    for line in lines:
        shape = line.copy.shape
        if line.copy.reference or (settings.reward_use.trains_policy and line.copy.trained):
            yield away + line.gathered + score_bytes(shape, copies.scored_rows(stage, budget), how)
        elif shape.outputs and not line.copy.trained:
            arithmetic = exact if line.copy.stored == "float32" else replace(exact, precision="bfloat16")
            yield line.gathered + score_bytes(shape, copies.scored_rows(stage, SCORING_TOKENS), arithmetic)
    if "evaluation" in settings.inputs.sections and settings.evidence.compares_policies:
        evaluation = stage.config.evaluation
        width = stage.config.rollout.max_prompt_tokens + copies.response_tokens(stage)
        # padded tokens of all responses to held-out prompts
        tokens = min(SCORING_TOKENS, evaluation.prompts * evaluation.samples_per_prompt * width)
        policy = next(line.copy.shape for line in lines if not line.copy.shape.outputs)
        yield away + divergence_bytes(policy, copies.scored_rows(stage, tokens), exact)
