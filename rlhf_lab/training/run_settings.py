"""Sections of the config that every training run has: evaluation, runtime, checkpoints. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.section import Section, section
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, Gt

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@section("evaluation")
@dataclass(frozen=True)
class Evaluation(Section):
    """How policies are compared on held-out prompts.

    Args:
        prompts: held-out prompts, the same for every policy.
        samples_per_prompt: replies per prompt and policy; intervals are clustered by prompt.
        pairs: held-out preference pairs for ranking accuracy and chosen-likelihood drift.
        seed: of the sampling noise. Each policy draws from its own stream.
        pass_at: values of k for which `pass@k` and, where replies state a final answer, `maj@k` are measured, over all
            subsets of k of the samples (`statistics/repeated_samples.py`); data with verifiable replies only.
        clips: of speech, held-out prompts whose first sample under every policy is kept as audio, to be heard in the
            report.
    """

    smoke: ClassVar[dict[str, int]] = {"prompts": 48, "samples_per_prompt": 2, "pairs": 100}
    smoke_real: ClassVar[dict[str, int]] = {"prompts": 6, "pairs": 12}
    keyed_if_set: ClassVar[tuple[str, ...]] = ("pass_at", "clips")
    prompts: Annotated[int, Ge(2, hint="an interval over prompts needs two")] = 384
    samples_per_prompt: Annotated[int, Ge(1)] = 4
    pairs: Annotated[int, Ge(2)] = 500
    seed: int = 0
    pass_at: tuple[Annotated[int, Ge(1)], ...] = ()
    clips: Annotated[int, Ge(0, hint="0 keeps no audio")] = 12

    def rules(self) -> tuple[Rule, ...]:
        most = max(self.pass_at, default=1)
        return (
            *super().rules(),
            (
                most <= self.samples_per_prompt,
                f"pass_at={list(self.pass_at)} needs at least {most} samples per prompt; set samples_per_prompt={most} "
                f"or higher (it is {self.samples_per_prompt})",
            ),
        )

    def contradictions(self, config: Config) -> list[str]:
        checkable = Capability.ANSWERS | Capability.TURNS
        knows_correct = bool(checkable & config.data.capabilities) or config.verifier is not None
        if not self.pass_at or "evaluation" not in config.algorithm.uses or knows_correct:
            return []
        return [
            f"evaluation.pass_at={list(self.pass_at)} needs replies that can be checked; use data with answers "
            "(data=arithmetic, data=gsm8k), name a verifier (data.verifier=…), or leave it out"
        ]


@section("runtime")
@dataclass(frozen=True)
class Runtime(Section):
    """Where and with what arithmetic a stage computes.

    Args:
        device: `auto` takes a GPU when there is one.
        dtype: arithmetic of training; parameters and optimiser state stay float32. `bfloat16` is autocast.
        threads: CPU threads per process. 0 is one for the small models of `model.kind=scratch`, where a second thread
            costs more than it gives (26 against 33 ms per SFT step), and all cores, shared between the jobs of a
            study, for others.
        stages_at_once: stages of a run that are built at the same time where they do not wait for each other. 0 is one
            for each core with the small models of `model.kind=scratch` on a CPU, which keep one core busy each; others
            are built in turn, whatever is written here.
        memory_gib: memory of the device that a run is planned for, in place of what the system says. A stage whose
            weights, gradients and optimiser state are more than that is refused before anything is loaded.
        fit: `auto` lets a stage that would not fit the device sample fewer rows at once, train on smaller micro-batches
            and keep no activations; and after the device has run out of memory, take a step again in smaller parts.
            No result depends on it. `none` computes as is written. null is `auto` for models that are not made from
            scratch, else `none`.
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
    """How often an interrupted stage can be picked up. Has no influence on results.

    Args:
        every_steps: optimiser steps between checkpoints; 0 writes none.
        background: write them while training goes on, from a copy in host memory; by default for models that are not
            from scratch. What is on the disk is always a whole checkpoint.
    """

    inherited: ClassVar[bool] = True
    every_steps: int = 100
    background: bool | None = None
