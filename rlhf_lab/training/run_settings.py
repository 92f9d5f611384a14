"""Sections of the config that every training run has: evaluation, runtime, checkpoints. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.section import Section, section
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import BySize, Ge, Gt

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@section("evaluation")
@dataclass(frozen=True)
class Evaluation(Section):
    """Evaluation of policies on held-out prompts.

    Args:
        prompts: number of held-out prompts, the same for every policy.
        samples_per_prompt: responses per prompt and policy; intervals are clustered by prompt.
        pairs: number of held-out preference pairs for ranking accuracy and chosen-likelihood drift.
        seed: seed of the sampling noise. Each policy has its own stream of random numbers.
        pass_at: values of k for which `pass@k` and, if responses state a final answer, `maj@k` are measured, over all
            subsets of k samples (`statistics/repeated_samples.py`); only for data with verifiable responses.
        clips: for speech, number of held-out prompts whose first sample under every policy is stored as audio for the
            report.
    """

    by_size = BySize(
        smoke={"prompts": 48, "samples_per_prompt": 2, "pairs": 100}, smoke_real={"prompts": 6, "pairs": 12}
    )
    keyed_if_set: ClassVar[tuple[str, ...]] = ("pass_at", "clips")
    prompts: Annotated[int, Ge(2, hint="an interval over prompts needs two")] = 384
    samples_per_prompt: Annotated[int, Ge(1)] = 4
    pairs: Annotated[int, Ge(2)] = 500
    seed: int = 0
    pass_at: tuple[Annotated[int, Ge(1)], ...] = ()
    clips: Annotated[int, Ge(0, hint="0 keeps no audio")] = 12

    def rules(self) -> tuple[Rule, ...]:
        largest = max(self.pass_at, default=1)
        return (
            *super().rules(),
            (
                largest <= self.samples_per_prompt,
                f"pass_at={list(self.pass_at)} needs at least {largest} samples per prompt; set "
                f"samples_per_prompt={largest} or higher (it is {self.samples_per_prompt})",
            ),
        )

    def contradictions(self, config: Config) -> list[str]:
        # pass@k counts correct responses, so the data or a verifier has to decide which ones are.
        checkable = Capability.ANSWERS | Capability.TURNS
        knows_correct = bool(checkable & config.data.capabilities) or config.verifier is not None
        if not self.pass_at or "evaluation" not in config.algorithm.inputs.sections or knows_correct:
            return []
        return [
            f"evaluation.pass_at={list(self.pass_at)} needs responses that can be verified; use data with answers "
            "(data=arithmetic, data=gsm8k), set a verifier (data.verifier=…), or remove evaluation.pass_at"
        ]


@section("runtime")
@dataclass(frozen=True)
class Runtime(Section):
    """Device and numerical precision of a stage.

    Args:
        device: `auto` uses a GPU if there is one.
        dtype: precision of training; parameters and optimizer state stay float32. `bfloat16` is autocast.
        threads: CPU threads per process. 0 is one thread for the small models of `model.kind=scratch`, where a second
            thread is slower (26 against 33 ms per SFT step). For other models 0 is all cores, divided among the jobs of
            a study.
        stages_at_once: number of independent stages of a run that are built in parallel. 0 is one per core for the
            small models of `model.kind=scratch` on a CPU, which use one core each. Other models are always built one
            after another.
        memory_gib: device memory that a run is planned for, instead of the detected one. A stage whose weights,
            gradients and optimizer state exceed it is refused before anything is loaded.
        fit: `auto` lets a stage that would not fit the device sample fewer rows at once, use smaller micro-batches and
            recompute activations. If the device runs out of memory, it repeats the step in smaller parts. Results do
            not change. `none` computes as configured. null is `auto` for pretrained models, else `none`.
    """

    inherited: ClassVar[bool] = True
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: Annotated[int, Ge(0)] = 0
    stages_at_once: Annotated[int, Ge(0, hint="1 is one by one")] = 0
    memory_gib: Annotated[float, Gt(0)] | None = None
    fit: Literal["auto", "none"] | None = None


@section("checkpoint")
@dataclass(frozen=True)
class Checkpoint(Section):
    """Checkpoints from which an interrupted stage can resume. They do not affect results.

    Args:
        every_steps: optimiser steps between checkpoints; 0 writes none.
        background: True to write them during training, from a copy in host memory; the default for pretrained models.
            The file on disk is always a complete checkpoint.
    """

    inherited: ClassVar[bool] = True
    every_steps: Annotated[int, Ge(0, hint="0 writes none")] = 100
    background: bool | None = None
