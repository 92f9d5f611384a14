"""Open the agents of a run and their model: the run's policy, or a service (`agent.llm`).

Services are called through the transport of the judges. The agents share the answer store, the cost ledger and the
budget of the judges of the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.core.errors import BudgetExceeded, ConfigError, JudgeUnavailable
from rlhf_lab.models.build import load_encoder, load_policy, revision_of
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.lora import adapter_base
from rlhf_lab.models.model_files import model_identity, positions
from rlhf_lab.models.settings import HuggingFace, Scratch
from rlhf_lab.packs.agents.harness.agent import REFERENCE, BatchAgent
from rlhf_lab.packs.agents.harness.brief import Brief
from rlhf_lab.packs.agents.harness.prompts import Instructions
from rlhf_lab.packs.agents.harness.resources import AgentModel, AgentResources, CodeRunner
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox
from rlhf_lab.packs.judging.judges.backends.local import local_completer
from rlhf_lab.packs.judging.judges.client import takes_tools
from rlhf_lab.packs.judging.judges.context import JudgeContext, open_judge
from rlhf_lab.packs.judging.judges.requests import Completer, Completion, CompletionRequest
from rlhf_lab.training.run import Run

SERVICE_TOKENS = 1024
"""Maximum number of tokens of a turn of a service if `agent.max_tokens` is null."""
MAX_PROMPT_TOKENS = 32768
"""Maximum number of prompt tokens for a local model that does not state its number of positions."""


def open_agents(run: Run) -> dict[str, BatchAgent]:
    """Return the agents of a run by their names in `agent.programs`.

    With `needs.reference`, each agent that uses a model runs with both models. The agents with the reference model come
    first and are named "NAME (reference)".
    """
    agents: dict[str, BatchAgent] = {}
    for role in ("reference", "policy"):
        if role == "reference" and role not in run.needs:
            continue
        resources = AgentResources(
            partial(open_model, run, role), partial(open_sandbox, run), run.config.sandbox.limits
        )
        # All agents of a role get the same resources, so a model is loaded once.
        for name, settings in run.config.agent.programs.items():
            if role == "policy" or settings.asks_model:
                title = name if role == "policy" else f"{name}{REFERENCE}"
                agents[title] = registry.build("agent", settings, resources)
    return agents


def open_model(run: Run, role: str = "policy") -> AgentModel:
    """Open the model of a run's agents. Raise ConfigError if it cannot be opened.

    Args:
        run: the run.
        role: role in `needs` of a local model.
    """
    if run.config.agent.llm == "local":
        return _local_model(run, role)
    # Costs are booked under the run's name, as those of its judge are: both share one budget.
    caller = JudgeContext(run.directory.name, Path(run.config.outputs), device=run.device, note=run.note)
    completer = _Service(open_judge(run.config.agent.service_settings, caller))
    return _agent_model(run, completer, max_tokens=SERVICE_TOKENS)


def _local_model(run: Run, role: str) -> AgentModel:
    agent, source = run.config.agent, run.needs[role]
    model = load_policy(source, run.config.model, device=run.device)
    encoder = load_encoder(source, run.config.model)
    max_tokens = agent.max_tokens or run.config.rollout.max_new_tokens
    limit = positions(model.config.to_dict())  # type: ignore[operator, union-attr]
    # Prompt and response have to fit into the model's positions together.
    capacity = limit - max_tokens if limit else MAX_PROMPT_TOKENS
    if capacity < 1:
        raise ConfigError(
            f"agent.max_tokens={max_tokens} leaves no space for a prompt in the model's {limit} positions; lower it"
        )
    completer = local_completer(
        model,
        encoder,
        content=model_identity(source),
        loading=_loading(run.config.model, source, encoder),
        temperature=agent.temperature or 0.0,
        max_prompt_tokens=min(agent.max_prompt_tokens or capacity, capacity),
        batch_rows=run.config.rollout.batch_rows,
        section="agent",
        note=run.note,
        cuts_questions=False,
    )
    return _agent_model(run, completer, max_tokens=max_tokens)


def _loading(settings: Scratch | HuggingFace, source: str, encoder: Encoder) -> dict[str, Any]:
    """Return the settings that change a model's answers but are not stored in its files; empty for a built-in model."""
    stored = settings.stored("policy")
    # float32 is the default and adds nothing to the identity
    weights = {} if stored == "float32" else {"weights": stored}
    if not isinstance(settings, HuggingFace):
        return weights
    base = adapter_base(source) or source
    return {"chat_template": encoder.chat is not None, "revision": revision_of(settings, base), **weights}


def _agent_model(run: Run, completer: Completer, *, max_tokens: int) -> AgentModel:
    agent = run.config.agent
    if agent.calls == "native" and not takes_tools(completer):
        raise ConfigError(
            f"agent.calls=native: the chat template of {run.needs['policy']} takes no tools, or writes calls in an "
            "unknown form; use agent.calls=text"
        )
    prompts = _prompts(run)
    # A model with brief prompts was trained to write calls as text.
    native = takes_tools(completer) and agent.calls != "text" and not isinstance(prompts, Brief)
    return AgentModel(
        completer=completer,
        prompts=prompts,
        native_calls=native,
        max_turns=agent.max_turns,
        max_calls=agent.max_calls,
        max_tokens=agent.max_tokens or max_tokens,
    )


def _prompts(run: Run) -> Instructions:
    agent = run.config.agent
    is_of_the_lab = agent.llm == "local" and registry.kind_of("model", run.config.model) == "scratch"
    if agent.prompt == "brief" or (agent.prompt == "auto" and is_of_the_lab):
        return Brief()
    return Instructions()


class _Service:
    """A service whose error messages name the settings of the agents' section instead of the judge's."""

    def __init__(self, completer: Completer):
        self.completer = completer

    @property
    def identity(self) -> Mapping[str, Any]:
        return self.completer.identity

    @property
    def takes_tools(self) -> bool:
        return takes_tools(self.completer)

    def complete_many(self, requests: Sequence[CompletionRequest], *, title: str = "") -> list[Completion]:
        try:
            return self.completer.complete_many(requests, title=title)
        except (JudgeUnavailable, BudgetExceeded) as error:
            raise type(error)(str(error).replace("judge.", "agent.service.")) from None


def open_sandbox(run: Run) -> CodeRunner:
    """Return the function that runs the code of a run's agents, under the limits of the section `sandbox`."""
    sandbox = Sandbox(run.config.sandbox)
    return lambda code, files: sandbox.run(code, files=files, keep=True)
