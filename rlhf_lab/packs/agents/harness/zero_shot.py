"""One turn without tools: what the model knows by itself."""

from __future__ import annotations

from rlhf_lab.packs.agents.harness.program import Attempt, ProgramAgent, Steps
from rlhf_lab.packs.agents.harness.settings import ZeroShot
from rlhf_lab.packs.agents.harness.surroundings import Surroundings
from rlhf_lab.packs.agents.harness.tool_use import Act, read_answer


def zero_shot(attempt: Attempt) -> Steps[str | None]:
    """Answer at once."""
    system, question = attempt.model.prompts.direct(attempt.question)
    (said,) = yield [attempt.ask(attempt.asked(question), system=system)]
    return Act(said, answer=read_answer(said.text)).final_answer


def build(settings: ZeroShot, surroundings: Surroundings) -> ProgramAgent:
    return ProgramAgent("zero_shot", zero_shot, surroundings.model, settings.identity())
