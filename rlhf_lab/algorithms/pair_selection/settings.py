"""Settings of data selection: which pairs a stage trains on, and the cross-fit whose margins it can rank them by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Ge, Gt, Le
from rlhf_lab.training.settings import SMALL, Held, TrainingSettings

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

WITHOUT_MARGINS = ("all", "random")


@dataclass(frozen=True)
class Selection(CheckedSettings):
    """Which of the corpus's training pairs a stage trains on.

    m is the margin r(chosen) − r(rejected) that `needs.margins` (`algorithm=crossfit`) has for a pair.

    Args:
        by: None is all pairs; `all` is too, whatever the other settings say, as a level of a sweep needs it; `random`;
            `margin`, largest |m| first: the pairs that the reward model is surest about, right or wrong; `agreement`,
            largest m first: the pairs whose label it shares; `length_matched`, pairs drawn so that chosen − rejected is
            as long as it is among those that `margin` would keep; `difficulty`, the pairs that DPO's optimum can rank
            as labelled at the run's β (arXiv:2405.19534, see `headroom` in rules.py), largest headroom first.
        keep: share of the pairs that is kept, in (0, 1]; with `difficulty` the largest share.
        source: `crossfit`, margins of a model that saw neither the pair nor its prompt; `in_sample`, of one that was
            trained on the pair, which selects on the label: a control.
        cycle: which cycle's margins, from 1; 0 is the last (see `CrossFit`).
    """

    by: Literal["all", "random", "margin", "agreement", "length_matched", "difficulty"] | None = None
    keep: Annotated[float, Gt(0), Le(1)] = 1.0
    source: Literal["crossfit", "in_sample"] = "crossfit"
    cycle: Annotated[int, Ge(0, hint="0 is the last cycle")] = 0

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.by is not None or self.keep == 1,
                f"keep={self.keep} chooses nothing without by; write selection.by=random, or what else ranks the pairs",
            ),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by is None:
            object.__setattr__(self, "by", "all")
        if not self.reads_margins:  # settings that decide nothing do not make another stage
            object.__setattr__(self, "source", "crossfit")
            object.__setattr__(self, "cycle", 0)
        if self.by == "all":
            object.__setattr__(self, "keep", 1.0)

    @property
    def reads_margins(self) -> bool:
        return self.by not in WITHOUT_MARGINS


def selection_rules(selection: Selection, *, beta: bool) -> tuple[Rule, ...]:
    """Rules of a stage that chooses pairs.

    Args:
        beta: whether the stage's optimum is DPO's at some β, which `difficulty` is relative to.
    """
    return (
        (
            beta or selection.by != "difficulty",
            "selection.by=difficulty is relative to the β of DPO's optimum; it needs algorithm=dpo, loss=sigmoid or "
            "loss=robust",
        ),
    )


def margin_problems(config: Config) -> list[str]:
    """A selection of pairs that reads margins which `needs` does not name."""
    selection = getattr(config.algorithm, "selection", None)
    if selection is None or not selection.reads_margins or config.needs.get("margins"):
        return []
    return [f"algorithm.selection.by={selection.by} reads margins; name them: needs.margins=pair_margins"]


@register("algorithm", "crossfit")
@dataclass(frozen=True)
class CrossFit(TrainingSettings):
    """Margins of every training pair under a reward model that saw neither the pair nor its prompt.

    Prompts are split into folds. For each fold a Bradley-Terry model that starts from `needs.policy` is trained on the
    other folds, all of them side by side; it then scores the fold. The models are in memory at once. The model that
    is saved is the first fold's.

    With `needs.margins`, another cross-fit of the same pairs, `selection` says which pairs the models train on: a
    further cycle of the flywheel. Every pair is scored again, and the margins of earlier cycles are kept beside.

    Args:
        folds: K; each model trains on (K − 1)/K of the pairs.
        centering: weight of (r_chosen + r_rejected)², which keeps scores near zero (arXiv:2312.09244).
        selection: the pairs that the models train on. `agreement` and in-sample margins are refused: they look at
            labels of pairs in other folds through a model that saw the fold to be scored.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.PAIRS)
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("margins",)
    data_roles: ClassVar[tuple[str, ...]] = ("margins",)
    adds_head: ClassVar[bool] = True
    loss_falls: ClassVar[bool] = True
    chance_metric: ClassVar[str] = "accuracy"
    answer: ClassVar[str] = "cross_fitted"
    smoke: ClassVar[dict[str, float]] = {**TrainingSettings.smoke, "folds": 2}
    at_small_scale: ClassVar[dict[str, Any]] = {**SMALL, "lr": 1e-2, "muon_lr": 5e-3, "batch_size": 32}
    folds: Annotated[int, Ge(2, hint="one fold leaves nothing to train on")] = 5
    centering: Annotated[float, Ge(0)] = 0.001
    selection: Selection = field(default_factory=Selection)

    def held(self, *, adapter: bool) -> list[Held]:
        return [Held(f"fold {k}", outputs=1, trained=True, together=k) for k in range(self.folds)]

    def rules(self) -> tuple[Rule, ...]:
        by = self.selection.by
        source = self.selection.source
        return (
            *super().rules(),
            (
                by in ("all", "random", "margin") and source == "crossfit",
                f"selection.by={by}, source={source} would let the labels of a fold choose what the model that scores "
                "it is trained on; use selection.by=margin with source=crossfit",
            ),
        )
