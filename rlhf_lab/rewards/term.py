"""Settings common to all terms of the reward graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.packs import load
from rlhf_lab.core.ranges import CheckedSettings, Finite, Ge, Gt

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

VERIFIED = "rlhf_lab.rewards.verifiers.oracle:verified"
"""Function that makes a verifier the oracle of a corpus. It is named by a string and not imported, because the import
would load numpy and corpora, which settings do not need."""


@dataclass(frozen=True)
class TermSettings(CheckedSettings):
    """Base class of the settings of every term of the reward graph.

    Args:
        weight: weight of the term in the sum of the graph; may be negative. With weight 0 the
            term does not contribute to the reward, but its values are still stored.
        standardise: `fixed` turns a value v into (v − mean)/sd. `corpus` does the same with the term's mean and sd on
            512 chosen responses of the training data, measured once at the start of the run and stored in
            `reward_terms.json`. `none` leaves values unchanged. There is no running mean, because the reward of a
            stored value would then depend on when it was computed.
        mean, sd: mean and standard deviation for `standardise=fixed`, in units of the term.
        transform: `sigmoid` maps the standardised term to (0, 1) before it is weighted; `none` leaves it unchanged.
        on_error: `stop` stops the run if the term fails. `abstain` leaves responses unscored and counts them: the
            failed responses if the term reports them, else all responses of the call.
        timeout_s: time limit of a call in seconds, after which it counts as failed; 0 means no limit.

    Class attributes:
        needs_role: entry of `needs` with the model that the term reads.
        reads_run_dir: True if that entry is the directory of a stage instead of a language model with a head.
        requires: capabilities that the data must provide; () if the term uses the world or the environment, or if the
            user's function may score text or audio.
        asks_judge: True if the term sends requests to a judge.
        runs_code: True if the term runs programs.
        verifies: True for a verifier (`rewards/verifiers/verifier.py`), which can also provide metrics.
    """

    needs_role: ClassVar[str | None] = None
    reads_run_dir: ClassVar[bool] = False
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
        """Return the section that configures where the term's programs run; None if it runs none."""
        return config.sandbox if self.runs_code else None

    def as_oracle(self, corpus: Any, config: Config) -> Any:
        """Return the corpus of a run with this verifier instead of its answer key; only for terms with `verifies`."""
        return load(VERIFIED)(corpus, self, self.runs_in(config))

    @property
    def outcome(self) -> bool:
        """True if the term is the result of the task itself: the true reward, or a check by answers or tests.

        A policy can raise such a term only by solving more tasks, so the monitor does not treat its rise as hacking.
        """
        return False

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.standardise == "fixed" or (self.mean, self.sd) == (0.0, 1.0),
                f"mean={self.mean}, sd={self.sd} are used by standardise=fixed only; remove them or set it",
            ),
        )
