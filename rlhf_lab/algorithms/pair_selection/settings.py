"""Settings of pair selection and of the cross-fit whose margins can rank the pairs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Ge, Gt, Le
from rlhf_lab.training.settings import SMALL_REWARD_MODEL, TrainingSettings
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, Resources

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

WITHOUT_MARGINS = ("all", "random")


@dataclass(frozen=True)
class Selection(CheckedSettings):
    """Selection of the training pairs of the corpus.

    m is the margin r(chosen) − r(rejected) of a pair in `needs.margins` (from `algorithm=crossfit`).

    Args:
        by: rule that selects pairs. None and `all` keep all pairs; `all` ignores the other settings, so it can be a
            level of a sweep. `random` keeps a random subset. `margin` keeps the largest |m|: the reward model is most
            confident in these pairs, right or wrong. `agreement` keeps the largest m: the model agrees with their
            label. `length_matched` samples pairs whose length difference, chosen − rejected, is distributed as among
            those that `margin` keeps. `difficulty` keeps the pairs that DPO's optimum can rank as labelled at the
            run's β, largest headroom first (arXiv:2405.19534, see `headroom` in selection.py).
        keep: fraction of the pairs that is kept, in (0, 1]; a maximum with `difficulty`.
        source: model whose margins are used. `crossfit` has seen neither the pair nor its prompt. `in_sample` was
            trained on the pair, so its margins depend on the label; use it as a control.
        cycle: cycle whose margins are used, from 1; 0 is the last (see `CrossFit`).
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
                f"keep={self.keep} selects nothing without selection.by; set selection.by, e.g. selection.by=random",
            ),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by is None:
            object.__setattr__(self, "by", "all")
        # Settings without an effect are reset, so that they do not change the key of the stage.
        if not self.reads_margins:
            object.__setattr__(self, "source", "crossfit")
            object.__setattr__(self, "cycle", 0)
        if self.by == "all":
            object.__setattr__(self, "keep", 1.0)

    @property
    def reads_margins(self) -> bool:
        return self.by not in WITHOUT_MARGINS


@dataclass(frozen=True)
class PairSettings(TrainingSettings):
    """Settings of an algorithm that trains on a selection of the corpus pairs.

    Args:
        max_pairs: maximum number of corpus pairs, a random subset; smaller subsets are contained in larger ones. 0 is
            all.
        selection: selection of the training pairs among them; margins come from `needs.margins`.
    """

    max_pairs: Annotated[int, Ge(0, hint="0 is all")] = 0
    selection: Selection = field(default_factory=Selection)

    @property
    def has_dpo_optimum(self) -> bool:
        """True if the optimum is that of DPO at some β, which `selection.by=difficulty` requires."""
        return False

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.has_dpo_optimum or self.selection.by != "difficulty",
                "selection.by=difficulty compares pairs with the β of DPO's optimum; use algorithm=dpo with "
                "loss=sigmoid or loss=robust",
            ),
        )


def margin_problems(config: Config) -> list[str]:
    """Return a problem if the selection reads margins but `needs` names none."""
    selection = getattr(config.algorithm, "selection", None)
    if selection is None or not selection.reads_margins or config.needs.get("margins"):
        return []
    return [f"algorithm.selection.by={selection.by} reads margins; set needs.margins=pair_margins"]


@register("algorithm", "crossfit")
@dataclass(frozen=True)
class CrossFit(TrainingSettings):
    """Margins of every training pair under a reward model trained on neither the pair nor its prompt.

    Prompts are split into folds. For each fold, a Bradley-Terry model that starts from `needs.policy` is trained on the
    other folds and then scores the fold. All models are trained in parallel and are in memory at the same time. The
    first fold's model is saved.

    With `needs.margins`, the result of a cross-fit of the same pairs, this stage is a further cycle. `selection` then
    selects training pairs by these margins, every pair is scored again, and the earlier margins are kept.

    Args:
        folds: number of folds K; each model trains on (K − 1)/K of the pairs.
        centering: weight of (r_chosen + r_rejected)², which keeps scores near zero (arXiv:2312.09244).
        selection: pairs that the models train on. `agreement` and in-sample margins are refused: they leak labels of
            a fold into the training data of the model that scores it.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.PAIRS)
    inputs = Inputs(needs=("policy",), optional=("margins",), directories=("margins",))
    resources = Resources(adds_head=True)
    evidence = Evidence(loss_falls=True, chance_metric="accuracy", answer="cross_fitted")
    by_size = replace(
        TrainingSettings.by_size, smoke={**TrainingSettings.by_size.smoke, "folds": 2}, small_scale=SMALL_REWARD_MODEL
    )
    folds: Annotated[int, Ge(2, hint="one fold leaves nothing to train on")] = 5
    centering: Annotated[float, Ge(0)] = 0.001
    selection: Selection = field(default_factory=Selection)

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies(f"fold {k}", outputs=1, trained=True, together=k) for k in range(self.folds)]

    def rules(self) -> tuple[Rule, ...]:
        by = self.selection.by
        source = self.selection.source
        return (
            *super().rules(),
            (
                by in ("all", "random", "margin") and source == "crossfit",
                f"selection.by={by}, source={source} would let the labels of a fold choose the training pairs of the "
                "model that scores it; use selection.by=margin with source=crossfit",
            ),
        )
