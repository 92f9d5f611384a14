"""The plan of one stage: bytes of every model copy on one process, and the most that each phase of the work needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from rlhf_lab.memory import copies
from rlhf_lab.memory.copies import SCORING_TOKENS, Copy
from rlhf_lab.memory.devices import work_of
from rlhf_lab.memory.sizes import ModelShape
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
from rlhf_lab.models.settings import Stored
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.stages.artifacts import Stage


@dataclass(frozen=True)
class Line:
    """One model copy on one process.

    Attributes:
        work: of its forward and backward pass; None for a frozen model.
        away: whether it is kept in host memory and comes to the device for each pass.
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
        phases: phase → its largest number of bytes, all resident weights and the optimiser state included.
        rows: of the largest micro-batch; None for a stage that trains nothing.
        sampler: memory of the sampler; None for a stage that does not sample.
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
        """Bytes on the device from the second step on, whatever is computed."""
        return sum(line.state.always for line in self.lines if not line.away)


def plan_stage(stage: Stage, processes: int = 1, *, cuda: bool = False) -> StagePlan:
    """The plan of one stage on one of `processes` processes. Raises ConfigError where a model's shape is unknown."""
    training = copies.training(stage)
    strategy = copies.strategy(stage)
    how = arithmetic(stage, cuda)
    models = copies.copies(stage)
    trains = any(model.trained for model in models)
    rows = copies.micro_rows(stage, processes) if trains else None
    # flash attention takes rows end to end, each with its own prompt
    repeats_prompts = strategy in _IN_STEP or how.attention == "flash_attention_2"
    if rows and (repeats_prompts or not stage.config.algorithm.shares_prompts):
        rows = rows.alone()
    lines = [_plan_copy(stage, model, training, strategy, processes, rows, how) for model in models]
    plan = StagePlan(stage, processes, training, lines, rows=rows)
    always = plan.always
    if rows:
        accumulates = copies.step_rows(stage, processes).rows > rows.rows
        plan.phases["update"] = always + _update_bytes(lines, accumulates)
    gathered, gathered_block = copies.gathered_to_sample(stage, models, training, processes)
    policy_number = copies.gathered_number(training, strategy, processes)
    plan.sampler = _sampler(stage, models, policy_number, gathered_block)
    if plan.sampler:
        plan.phases["sampling"] = always + gathered + plan.sampler.total
    scoring = max(_scoring_passes(stage, lines, how), default=0)
    if scoring:
        plan.phases["scoring"] = always + scoring
    plan.phases = plan.phases or {"loaded": always}
    return plan


_IN_STEP = ("fsdp_grad_op", "fsdp_full", "zero2", "zero3")
"""Strategies whose processes must run the same passes, so none of them takes two over a batch."""


def arithmetic(stage: Stage, cuda: bool) -> Arithmetic:
    """How the stage's passes are computed."""
    configured: Any = getattr(stage.config.model, "attention", "auto")
    # `auto` takes sdpa where a family has it; scores that are capped are computed eagerly in any case, see work.py.
    attention: Attention = "sdpa" if configured == "auto" else configured
    return Arithmetic(copies.training(stage).precision, attention, stage.config.sharding.checkpointing, cuda)


def _plan_copy(
    stage: Stage, model: Copy, training: Training, strategy: str, processes: int, rows: Rows | None, how: Arithmetic
) -> Line:
    """The line of one model copy."""
    divided = processes > 1 and STRATEGIES[strategy].weights
    gathered = gathered_bytes(model.shape, strategy, training.precision) if divided else 0
    if model.trained and rows:
        state = trained_state(model.shape, training, strategy, processes, beside=model.beside)
        work = work_of(model.shape, rows, how, training, strategy, processes)
        return Line(model, state, work, gathered=gathered)
    if model.beside is not None:
        return Line(model, State(WEIGHT * model.beside))
    where = stage.config.sharding.reference
    if not model.reference:
        return Line(model, frozen_state(model.shape, stored=model.stored))
    if where == "sharded" and divided:
        weights = frozen_state(model.shape).weights
        whole_in_pass = gathered_bytes(model.shape, _REFERENCE_STRATEGY, how.precision)
        return Line(model, State(ceil_div(weights, processes)), gathered=whole_in_pass)
    halved = processes > 1 and STRATEGIES[strategy].rooted and training.precision == "bfloat16"
    return Line(model, frozen_state(model.shape, halved=halved, stored=model.stored), away=where == "offload")


_REFERENCE_STRATEGY = "fsdp_full"
"""How a sharded reference is divided, whatever the policy's strategy."""


def _update_bytes(lines: list[Line], accumulates: bool) -> int:
    """Most bytes of a forward and backward pass.

    Models that do not share a backward pass take turns, and the gradients of those that had their turn stay.
    """
    trained = [line for line in lines if line.work]
    all_gradients = sum(line.state.passing for line in trained)
    most = 0
    for turn in sorted({line.copy.together for line in trained}):
        in_turn = [line for line in trained if line.copy.together == turn]
        gradients = sum(line.state.passing for line in in_turn)
        weight_copies = sum(line.state.copy for line in in_turn)
        passes = [line.work for line in in_turn if line.work]
        peak = update_peak(passes, weight_copies, gradients, accumulates=accumulates)
        if accumulates:  # all models have gradients of earlier micro-batches
            other_gradients = all_gradients - gradients
        else:
            other_gradients = sum(line.state.passing for line in trained if line.copy.together < turn)
        most = max(most, peak + other_gradients)
    return most


def _sampler(stage: Stage, models: list[Copy], policy_number: int, gathered_block: int) -> Sampling | None:
    """The memory of the lab's own sampler; None for a stage that does not sample, or that servers sample for.

    Args:
        policy_number: bytes of a number of the policy that it reads, unless that is stored in less than float32.
        gathered_block: as in `work.sampling`.
    """
    batch = copies.sampled(stage)
    rollout = stage.config.rollout
    if batch is None or (isinstance(rollout, Vllm) and stage.config.engine == "native"):
        return None
    shape = next((model.shape for model in models if not model.shape.outputs), copies.policy_shape(stage))
    in_place = _policy_stored(stage) != "float32"
    own = 2 if in_place and shape.own_decoder else policy_number
    bytes_each = {"model": own, "bfloat16": 2, "float32": 4}[rollout.dtype]
    lengths = rollout.max_prompt_tokens, copies.reply_tokens(stage)
    return sampling(
        shape,
        batch.prompts,
        batch.group,
        *lengths,
        bytes_each,
        refilled=batch.refilled,
        in_place=in_place,
        gathered_block=gathered_block,
    )


def _policy_stored(stage: Stage) -> Stored:
    """How the weights of the policy are stored that is sampled from."""
    trained_whole = stage.config.algorithm.makes_model and not stage.config.model.lora.rank
    return "float32" if trained_whole else stage.config.model.stored("policy")


def _scoring_passes(stage: Stage, lines: list[Line], how: Arithmetic) -> Iterator[int]:
    """Bytes of each pass without gradient, models brought from host memory included."""
    settings = stage.config.algorithm
    # Reward models and the evaluation count in float32, whatever the arithmetic of training.
    exact = Arithmetic("float32", how.attention, cuda=how.cuda)
    budget = getattr(settings, "micro_batch_tokens", 0) or SCORING_TOKENS
    away = sum(line.state.weights for line in lines if line.away)
    for line in lines:
        shape = line.copy.shape
        if line.copy.reference or (settings.trains_on_reward and line.copy.trained):
            yield away + line.gathered + score_bytes(shape, copies.scored_rows(stage, budget), how)
        elif shape.outputs and not line.copy.trained:
            arithmetic = exact if line.copy.stored == "float32" else replace(exact, precision="bfloat16")
            yield score_bytes(shape, copies.scored_rows(stage, SCORING_TOKENS), arithmetic)
    if "evaluation" in settings.uses and settings.compares_policies:
        tokens = min(SCORING_TOKENS, _evaluated_tokens(stage))
        yield away + divergence_bytes(_policy(lines), copies.scored_rows(stage, tokens), exact)


def _evaluated_tokens(stage: Stage) -> int:
    """Padded tokens of all replies to held-out prompts."""
    rollout = stage.config.rollout
    evaluation = stage.config.evaluation
    width = rollout.max_prompt_tokens + copies.reply_tokens(stage)
    return evaluation.prompts * evaluation.samples_per_prompt * width


def _policy(lines: list[Line]) -> ModelShape:
    return next(line.copy.shape for line in lines if not line.copy.shape.outputs)
