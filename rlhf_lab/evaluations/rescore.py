"""Stage that scores another stage's saved responses again, to compare weightings of a composite reward."""

from __future__ import annotations

from dataclasses import replace

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import append_jsonl, truncate
from rlhf_lab.evaluations.rescoring import label_of, read_responses, rescore
from rlhf_lab.evaluations.settings import Rescore
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.training.run import Result, Run


class Rescoring:
    """Stage that reads saved responses once, and computes the reward of each weighting from their columns."""

    def __init__(self, settings: Rescore, run: Run):
        self.settings = settings
        self.run = run
        self.responses = read_responses(run.needs["rollouts"], settings.policy)
        self.graphs = self._graphs()

    def _graphs(self) -> dict[str, RewardGraph]:
        """Return label → reward graph: one per weighting, or the configured reward if no weighting is named."""
        graph = self.run.config.reward
        if not self.settings.weightings:
            return {label_of(graph.weighting): graph}
        try:
            return {label_of(weights): replace(graph, weights=weights) for weights in self.settings.weightings}
        except ConfigError as error:
            raise ConfigError([f"algorithm.weightings: {line}" for line in error.problems]) from None

    def finish(self) -> Result:
        policies = rescore(self.responses, self.graphs, self.settings.choose_from)
        path = self.run.directory / "evaluation.jsonl"
        truncate(path, 0)  # remove rows of an interrupted attempt
        rows = [row for policy in policies for row in policy.rows]
        append_jsonl(path, rows)
        counts = {"replies": len(self.responses.rows), "prompts": len(self.responses.prompts)}
        return Result([policy.summary() for policy in policies], counts)


def build(settings: Rescore, run: Run) -> Rescoring:
    return Rescoring(settings, run)
