"""Opens the agents of a run, and the model behind them: the run's policy, or a service (`agent.llm`).

Services are asked by the judges' transport: answers, ledger and budget are those of the judges of the same run.
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
from rlhf_lab.packs.agents.harness.agent import BatchAgent
from rlhf_lab.packs.agents.harness.brief import Brief
from rlhf_lab.packs.agents.harness.model import AgentModel
from rlhf_lab.packs.agents.harness.prompts import Instructions, Prompts
from rlhf_lab.packs.agents.harness.surroundings import CodeRunner, Surroundings
from rlhf_lab.packs.code.sandbox.outcome import Outcome
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox
from rlhf_lab.packs.judging.judges.backends.local import local_completer
from rlhf_lab.packs.judging.judges.caller import Caller, open_judge
from rlhf_lab.packs.judging.judges.client import takes_tools
from rlhf_lab.packs.judging.judges.requests import Completer, Reply, Request
from rlhf_lab.training.run import Run

SERVICE_TOKENS = 1024
"""Longest turn of a service where `agent.max_tokens` is null."""
MAX_PROMPT_TOKENS = 32768
"""Longest conversation of a local model that does not say how many positions it has."""


def open_agents(run: Run) -> dict[str, BatchAgent]:
    """The agents of a run by the names that they have in `agent.programs`."""
    surroundings = Surroundings(lambda: open_model(run), lambda: open_sandbox(run), run.config.sandbox.limits)
    return {
        name: registry.build("agent", settings, surroundings) for name, settings in run.config.agent.programs.items()
    }


def open_model(run: Run) -> AgentModel:
    """The model behind the agents of a run, and how it is spoken to. Raises ConfigError where it cannot be."""
    if run.config.agent.llm == "local":
        return _local_model(run)
    # counted under the run's name, as its judge is: one budget for both
    caller = Caller(run.folder.name, Path(run.config.outputs), device=run.device, note=run.note)
    completer = _Service(open_judge(run.config.agent.service_settings, caller))
    return _agent_model(run, completer, max_tokens=SERVICE_TOKENS)


def _local_model(run: Run) -> AgentModel:
    agent, source = run.config.agent, run.needs["policy"]
    model = load_policy(source, run.config.model, device=run.device)
    encoder = load_encoder(source, run.config.model)
    max_tokens = agent.max_tokens or run.config.rollout.max_new_tokens
    limit = positions(model.config.to_dict())  # type: ignore[operator, union-attr]
    room = limit - max_tokens if limit else MAX_PROMPT_TOKENS
    if room < 1:
        raise ConfigError(f"agent.max_tokens={max_tokens} leaves no room for a prompt in {limit} positions; lower it")
    completer = local_completer(
        model,
        encoder,
        content=model_identity(source),
        loading=_loading(run.config.model, source, encoder),
        temperature=agent.temperature or 0.0,
        max_prompt_tokens=min(agent.max_prompt_tokens or room, room),
        batch_rows=run.config.rollout.batch_rows,
        section="agent",
        note=run.note,
    )
    return _agent_model(run, completer, max_tokens=max_tokens)


def _loading(settings: Scratch | HuggingFace, source: str, encoder: Encoder) -> dict[str, Any]:
    """What settings of a Hugging Face model decide of its answers and its files do not; a model of the lab has none."""
    stored = settings.stored("policy")
    weights = {} if stored == "float32" else {"weights": stored}
    if not isinstance(settings, HuggingFace):
        return weights
    base = adapter_base(source) or source
    return {"chat_template": encoder.chat is not None, "revision": revision_of(settings, base), **weights}


def _agent_model(run: Run, completer: Completer, *, max_tokens: int) -> AgentModel:
    agent = run.config.agent
    if agent.calls == "native" and not takes_tools(completer):
        raise ConfigError(
            f"agent.calls=native: the chat template of {run.needs['policy']} takes no tools, or writes calls in a form "
            "that is not read; use agent.calls=text"
        )
    prompts = _prompts(run)
    # a model that is spoken to in brief has learned to write calls as text
    native = takes_tools(completer) and agent.calls != "text" and not isinstance(prompts, Brief)
    return AgentModel(
        completer=completer,
        prompts=prompts,
        native_calls=native,
        max_turns=agent.max_turns,
        max_calls=agent.max_calls,
        max_tokens=agent.max_tokens or max_tokens,
    )


def _prompts(run: Run) -> Prompts:
    agent = run.config.agent
    is_of_the_lab = agent.llm == "local" and registry.kind_of("model", run.config.model) == "scratch"
    if agent.prompt == "brief" or (agent.prompt == "auto" and is_of_the_lab):
        return Brief()
    return Instructions(marks_results=agent.mark_results)


class _Service:
    """A service whose errors name the settings of the agents' section."""

    def __init__(self, completer: Completer):
        self.completer = completer

    @property
    def identity(self) -> Mapping[str, Any]:
        return self.completer.identity

    @property
    def takes_tools(self) -> bool:
        return takes_tools(self.completer)

    def complete_many(self, requests: Sequence[Request], *, title: str = "") -> list[Reply]:
        """See `Completer.complete_many`."""
        try:
            return self.completer.complete_many(requests, title=title)
        except (JudgeUnavailable, BudgetExceeded) as error:
            raise type(error)(str(error).replace("judge.", "agent.service.")) from None


def open_sandbox(run: Run) -> CodeRunner:
    """What runs the code of a run's agents, under the limits of the section `sandbox`."""
    return partial(_run_code, Sandbox(run.config.sandbox))


def _run_code(sandbox: Sandbox, code: str, files: Mapping[str, bytes]) -> Outcome:
    return sandbox.run(code, files=files, keep=True)
