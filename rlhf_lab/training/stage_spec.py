"""Facts about an algorithm that other packages need, in one value object per reader. Imports no torch.

A settings class (`training/settings.py`) has one attribute for each object. A subclass that changes a part of it writes
`inputs = replace(Parent.inputs, …)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Inputs:
    """Sections, models and corpora that a stage reads. Used for the stage graph, the keys of stages and config checks.

    Attributes:
        sections: sections of the config that affect the stage's result, and therefore its key.
        needs: roles of the models and directories that it starts from.
        optional: further roles that may be named.
        late: roles that only evaluations read, so that training may start before they are complete. The algorithm
            calls `Run.await_need` before it reads one.
        any_policies: True if further roles are allowed, each naming a policy.
        directories: roles of which it reads what a stage wrote to its directory, instead of the stage's model.
        rows: role that reads a corpus created by another stage → kind of its rows (`data.generated.KINDS`).
        corpus_suffices: True if it needs no pairs of the data when it trains on those of a synthetic corpus.
        reseeded: roles whose recipe is built with another seed: 1000·k above the run's for the k-th of them; `gold` is
            always the last of them.
        digested: settings with a path whose file is digested by `contents`.
    """

    sections: tuple[str, ...] = ("model",)
    needs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    any_policies: bool = False
    directories: tuple[str, ...] = ()
    rows: Mapping[str, str] = field(default_factory=dict)
    corpus_suffices: bool = False
    reseeded: tuple[str, ...] = ()
    digested: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outputs:
    """Model and corpus that a stage writes for other stages. Used by the stage graph and the list of recipes.

    Attributes:
        model: True if it trains and saves a model; otherwise it has no steps and only evaluates.
        rows: kind of the rows of the corpus that it creates; empty if it creates none.
    """

    model: bool = True
    rows: str = ""


@dataclass(frozen=True)
class RewardUse:
    """Use of rewards and judges by a stage. Read by the config sections `reward` and `judge` and by the monitor.

    Attributes:
        trains_policy: True if the policy is trained on the reward.
        scores: True if it scores with the reward graph, so that every role of its terms is required.
        loads_models: True if models of the reward graph are loaded, provided it uses the section `reward`.
        measures_gold: True if it measures the quality of responses, for which `needs.gold` may name a reward model.
        asks_judge: True if it calls `judge` itself; terms of its reward may call it as well.
    """

    trains_policy: bool = False
    scores: bool = False
    loads_models: bool = True
    measures_gold: bool = False
    asks_judge: bool = False


@dataclass(frozen=True)
class Resources:
    """Resources that a stage needs while it runs. Used by memory plans, the launcher and the sandbox.

    Attributes:
        distributed: True if its passes are split between processes; otherwise one process builds it.
        adds_head: True if it adds a scalar head to `needs.policy`, which may then already have one.
        shares_prompts: True if its training passes compute a prompt once for all rows with that prompt.
        runs_code: True if tools of its tasks run programs in the sandbox.
        in_worker: True if its policy is in a worker process, which may have another environment (`model=parler`).
    """

    distributed: bool = True
    adds_head: bool = False
    shares_prompts: bool = False
    runs_code: bool = False
    in_worker: bool = False


@dataclass(frozen=True)
class ClusterUnit:
    """Unit, such as a prompt, by which confidence intervals are clustered: its rows are not independent.

    Attributes:
        name: name as in "clustered by prompt".
        noun: singular noun as in "12 prompts".
        column: column of evaluation.jsonl that identifies the unit.
    """

    name: str
    noun: str
    column: str

    @property
    def plural(self) -> str:
        return f"{self.noun}s"


@dataclass(frozen=True)
class Evidence:
    """Meaning of the numbers of a stage. Used by reports, figures and the checks of a finished run.

    Attributes:
        answer: name, among the `answers` of packs (`core/packs.py`), of the rule that turns its result into an answer
            to a recipe's question.
        clusters: unit by which the intervals of its estimates are clustered.
        loss_falls: True if its loss has one objective and one data set from the first step to the last, so that it has
            to decrease.
        chance_metric: metric that is ½ without knowledge; empty if there is none.
        compares_policies: True if its evaluation measures the KL of policies, provided it uses `evaluation`.
        one_path: True if the evaluated policies are successive points of one method: checkpoints of a training, or
            best-of-n with increasing n. Figures connect them by a curve; policies of different methods stay points.
        gain_curve: form of the reward gained against KL, see `statistics.overoptimization`: `rl` during training, `bon`
            over the n of best-of-n.
        baseline_policy: name under which it evaluates a policy of another training, which is not on that path; empty
            if there is none.
    """

    answer: str = ""
    clusters: ClusterUnit = ClusterUnit("prompt", "prompt", "prompt_id")
    loss_falls: bool = False
    chance_metric: str = ""
    compares_policies: bool = True
    one_path: bool = True
    gain_curve: Literal["bon", "rl"] = "rl"
    baseline_policy: str = ""


@dataclass(frozen=True)
class ModelCopies:
    """A model that a stage keeps in memory while it works.

    Attributes:
        name: name of the model in memory plans.
        outputs: outputs of its scalar head; 0 is a language model with its own head.
        role: role of `needs` that determines its architecture; empty is the stage's own policy.
        trained: True if it has gradients and an optimizer.
        reference: True if `sharding.reference` determines its location.
        together: models with the same number are trained in one backward pass.
        starts_from: role from which its adapter starts, if it can share the base of the policy's adapter.
    """

    name: str
    outputs: int = 0
    role: str = ""
    trained: bool = False
    reference: bool = False
    together: int = 0
    starts_from: Literal["", "policy", "reward"] = ""
