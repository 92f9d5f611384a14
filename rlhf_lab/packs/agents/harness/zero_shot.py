"""Agent that answers in one turn without tools, from the knowledge of the model."""

from __future__ import annotations

from rlhf_lab.packs.agents.harness.program import AgentAttempt, ProgramAgent, Steps
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.settings import ZeroShot
from rlhf_lab.packs.agents.harness.tool_use import Act, read_answer


def zero_shot(attempt: AgentAttempt) -> Steps[str | None]:
    """Answer in one turn."""
    system, question = attempt.model.prompts.direct(attempt.question)
    (output,) = yield [attempt.ask(attempt.to_messages(question), system=system)]
    return Act(output, answer=read_answer(output.text)).final_answer


def build(settings: ZeroShot, resources: AgentResources) -> ProgramAgent:
    return ProgramAgent("zero_shot", zero_shot, resources.model, settings.identity())
