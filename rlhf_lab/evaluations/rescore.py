"""A stage that scores another stage's saved replies again: weightings of a composite reward side by side."""

from __future__ import annotations

from dataclasses import replace

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import append_jsonl, truncate
from rlhf_lab.evaluations.rescoring import label_of, read_replies, rescore
from rlhf_lab.evaluations.settings import Rescore
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.training.run import Result, Run


class Rescoring:
    """Reads the saved replies once; each weighting is then arithmetic on their columns."""

    def __init__(self, settings: Rescore, run: Run):
        self.settings, self.run = settings, run
        self.replies = read_replies(run.needs["rollouts"], settings.policy)
        self.graphs = self._graphs()

    def _graphs(self) -> dict[str, RewardGraph]:
        """Label → reward graph: one per weighting, or the configured reward where none is named."""
        graph = self.run.config.reward
        if not self.settings.weightings:
            return {label_of(graph.weighting) or graph.aggregate: graph}
        try:
            return {label_of(weights): replace(graph, weights=weights) for weights in self.settings.weightings}
        except ConfigError as error:
            raise ConfigError([f"algorithm.weightings: {line}" for line in error.problems]) from None

    def finish(self) -> Result:
        """The policy, then each weighting's choice; evaluation.jsonl gets the rows of both."""
        # A single weighting has no first one to be compared with: it is compared with the reward as it was saved.
        saved_N = self.replies.columns["proxy"] if len(self.graphs) == 1 else None
        policies = rescore(self.replies, self.graphs, self.settings.choose_from, saved_N)
        path = self.run.folder / "evaluation.jsonl"
        truncate(path, 0)  # of an interrupted attempt
        append_jsonl(path, [row for policy in policies for row in policy.rows])
        counts = {"replies": len(self.replies.rows), "prompts": len(self.replies.prompts)}
        return Result([policy.summary() for policy in policies], counts)


def build(settings: Rescore, run: Run) -> Rescoring:
    return Rescoring(settings, run)
