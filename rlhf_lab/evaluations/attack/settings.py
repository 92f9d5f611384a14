"""Settings of the attack on a reward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.ranges import BySize, Finite, Ge
from rlhf_lab.evaluations.settings import EvaluationSettings, further_roles
from rlhf_lab.training.stage_spec import ModelCopies, Resources

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@register("algorithm", "attack")
@dataclass(frozen=True)
class Attack(EvaluationSettings):
    """Attack on the reward of the run: search for responses that it prefers, starting from ordinary responses.

    The start responses are sampled from `needs.policy`. Without `needs.policy`, they are responses of the held-out
    data. The search calls only the reward. The true reward, if there is one, is measured afterwards. Further roles of
    `needs`, with names of your choice, are policies that were trained on the reward, starting from `needs.policy`.
    Their gains are measured like those of the attack.

    Args:
        samples: number of responses per prompt that are sampled from `needs.policy`. They set the scale (the standard
            deviation of the reward), and the best of them is the exploit `best_of_n`; the first is the start.
        rounds: number of rounds of the search; 0 tries only the fixed exploits.
        candidates: number of edited responses that are scored per round, for each response that is kept.
        beam: number of responses per prompt that are kept after a round; 1 is greedy.
        units: parts of a response that an edit inserts, deletes, replaces or repeats.
        pool_pairs: number of training pairs whose sentences and words may be inserted.
        max_words: maximum number of words of a response in the search; 0 takes the longest start response, so that a
            gain does not come from length alone.
        pairs: number of held-out preference pairs on which the accuracy of the reward is measured; 0 measures none.
        max_gain: maximum attack gain; above it the exit status is 1. null always passes.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.SINGLE_TURN)
    inputs = replace(EvaluationSettings.inputs, any_policies=True, optional=("policy", "reward"))
    reward_use = replace(EvaluationSettings.reward_use, scores=True)
    resources = Resources(distributed=False)
    evidence = replace(EvaluationSettings.evidence, answer="attacked")
    by_size = BySize(smoke={"samples": 2, "rounds": 2, "candidates": 4})
    samples: Annotated[int, Ge(2, hint="two or more set the scale")] = 4
    rounds: Annotated[int, Ge(0, hint="0 tries only the fixed exploits")] = 8
    candidates: Annotated[int, Ge(1)] = 10
    beam: Annotated[int, Ge(1)] = 1
    units: Literal["sentences", "words", "both"] = "both"
    pool_pairs: Annotated[int, Ge(0)] = 800
    max_words: Annotated[int, Ge(0, hint="0 is the longest start response")] = 0
    pairs: Annotated[int, Ge(0, hint="0 measures no accuracy")] = 0
    max_gain: Annotated[float, Finite()] | None = None

    def trained_roles(self, config: Config) -> list[str]:
        """Return the roles of policies that were trained on the reward, in the order written."""
        return further_roles(config, ("policy", *self.inputs.optional))

    def one_vocabulary(self, config: Config) -> dict[str, tuple[str, str]]:
        remedy = "there is no KL between them; name policies that were trained from needs.policy"
        return dict.fromkeys(self.trained_roles(config), ("policy", remedy))

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        """Return the models in memory: the start policy and one trained policy at a time."""
        return [ModelCopies("policy"), ModelCopies("trained policy")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(evaluation.prompts, self.samples)]


def problems(config: Config) -> list[str]:
    """Return a problem if the attack has no start responses, or a trained policy without the one it started from."""
    if not isinstance(config.algorithm, Attack) or config.needs.get("policy"):
        return []
    if trained := config.algorithm.trained_roles(config):
        return [
            f"needs.{trained[0]} is a policy that was trained on the reward, and needs.policy is not set; name the "
            "policy that its training started from (needs.policy=RUN)"
        ]
    starts = Capability.PAIRS | Capability.DEMONSTRATIONS
    if config.data.provides & starts:
        return []
    return [
        "needs.policy is not set, and the data have no responses to start from; name a policy (needs.policy=RUN) whose "
        "responses are attacked, or data with preference pairs or demonstrations"
    ]
