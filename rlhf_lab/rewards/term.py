"""The settings that every term of the reward graph has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Finite, Ge, Gt

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@dataclass(frozen=True)
class TermSettings(CheckedSettings):
    """Common to every term of the reward graph.

    Args:
        weight: of the term in `reward.aggregate=weighted_sum` and `mean`; may be negative. 0 leaves the term out of
            the reward and keeps its values.
        standardise: `fixed` turns a value v into (v − mean)/sd; `corpus` does so with the mean and sd of the term on
            512 chosen replies of the training data, measured once when the run starts and kept in
            `reward_terms.json`; `none` takes values as they are. A running mean is not offered: what a saved value
            was worth would depend on when it was seen.
        mean, sd: of `standardise=fixed`, in units of the term.
        transform: `sigmoid` maps the standardised term to (0, 1) before it is weighted; `none` takes it as it is.
        on_error: `stop` ends the run when the term fails; `abstain` leaves the replies of that call unscored, counted.
        timeout_s: a call that takes longer counts as failed; 0 waits.

    Class attributes:
        needs_role: entry of `needs` with the model that the term reads.
        reads_folder: whether that is what a stage wrote into its directory, and no language model with a head.
        requires: capabilities that the data must provide; () if the term asks the world or the environment, or leaves
            the choice between text and audio to the user's function.
        verifies: whether the term is a verifier (`rewards/verifiers/verifier.py`), which metrics can ask.
    """

    needs_role: ClassVar[str | None] = None
    reads_folder: ClassVar[bool] = False
    requires: ClassVar[Requirements] = (Capability.TEXT,)
    asks_judge: ClassVar[bool] = False
    runs_code: ClassVar[bool] = False
    verifies: ClassVar[bool] = False
    weight: Annotated[float, Finite()] = 1.0
    standardise: Literal["none", "fixed", "corpus"] = "none"
    mean: Annotated[float, Finite()] = 0.0
    sd: Annotated[float, Gt(0)] = 1.0
    transform: Literal["none", "sigmoid"] = "none"
    on_error: Literal["stop", "abstain"] = "stop"
    timeout_s: Annotated[float, Ge(0, hint="0 waits without limit")] = 0.0

    def runs_in(self, config: Config) -> Any:
        """The section that says where the term's programs run; None for terms that run none."""
        return config.sandbox if self.runs_code else None

    @property
    def outcome(self) -> bool:
        """Whether the term is the result of the task itself, by the world's truth or the data's answers and tests.

        A policy raises it only by doing better, so that the monitor does not take its rise for a sign of hacking.
        """
        return False

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.standardise == "fixed" or (self.mean, self.sd) == (0.0, 1.0),
                f"mean={self.mean}, sd={self.sd} are read by standardise=fixed only",
            ),
        )
