"""A model of the lab as a model of inspect: `inspect eval TASK.py --model rlhf_lab/FOLDER`.

Answers are those of `judge=local`: sampled by the lab's own sampler, and following from the question and its draw
alone. The n-th time that a question is asked it gets draw n of its seed, so that epochs differ at a temperature and a
second run repeats the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from logging import getLogger

from inspect_ai.model import ChatMessage, GenerateConfig, ModelAPI, ModelOutput, modelapi
from inspect_ai.tool import ToolChoice, ToolInfo
from torch import nn

from rlhf_lab.core import ranks
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.model_files import pinned_identity, problems
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.packs.agents.inspect.gathering import Gatherer
from rlhf_lab.packs.agents.inspect.messages import check_settings, check_tool_choice, from_reply, to_request
from rlhf_lab.packs.judging.judges.backends.local import local_completer
from rlhf_lab.packs.judging.judges.backends.settings import LocalModel
from rlhf_lab.packs.judging.judges.requests import Completer, Reply, Request

logger = getLogger(__name__)

WINDOW_S = 0.02
"""Inspect's tasks ask within milliseconds of each other; a batch of a tiny model takes tenths of a second."""
DRAWS_PER_SEED = 1 << 20


@dataclass(frozen=True)
class Question:
    """A request and how its answer is sampled."""

    request: Request
    temperature: float


@modelapi(name="rlhf_lab")
class LabModel(ModelAPI):
    """A folder or hub id of a causal language model, by the lab's sampler.

    Args:
        device: cpu, cuda, or auto, which is a GPU where there is one.
        max_prompt_tokens: longer questions are cut on the left, with a warning.
        batch_rows: questions that are answered at once; also inspect's connections, unless it adapts their number.
        window_s: seconds that a batch waits for further questions.

    Raises:
        ConfigError: no model is there.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        device: str = "auto",
        max_prompt_tokens: int = LocalModel.max_prompt_tokens,
        batch_rows: int = LocalModel.batch_rows,
        window_s: float = WINDOW_S,
    ):
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        if found := problems(model_name, "model"):
            raise ConfigError(found)
        if base_url:
            raise ConfigError(f"model_base_url={base_url}: a model of rlhf_lab runs in this process; leave it out")
        self.device, self.max_prompt_tokens, self.batch_rows = device, max_prompt_tokens, batch_rows
        self._gatherer: Gatherer[Question, Reply] = Gatherer(self._answer, window_s)
        self._times_asked: Counter[tuple[str, int]] = Counter()
        self._warned: set[str] = set()
        self._completers: dict[tuple[float, int], Completer] = {}

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """See `ModelAPI.generate`. Raises ConfigError for settings and messages that the lab's models do not take."""
        values = config.model_dump(exclude_none=True)
        self._warn(check_settings(values))
        check_tool_choice(tool_choice)
        messages = [message.model_dump() for message in input]
        definitions = [tool.model_dump(exclude_none=True) for tool in tools]
        request = to_request(messages, definitions, values)
        request = replace(request, draw=self._draw(request, values.get("seed", 0)))
        reply = await self._gatherer.ask(Question(request, values.get("temperature", LocalModel.temperature)))
        return ModelOutput.model_validate(from_reply(reply, self.model_name))

    def max_connections(self) -> int:
        return self.batch_rows

    def connection_key(self) -> str:
        return self.model_name

    def _warn(self, settings: Sequence[str]) -> None:
        for name in settings:
            if name not in self._warned:
                self._warned.add(name)
                logger.warning(f"rlhf_lab: {name} has no meaning for a model on this machine and changes nothing")

    def _draw(self, request: Request, seed: int) -> int:
        key = request.digest({}), seed
        times = self._times_asked[key]
        self._times_asked[key] += 1
        return seed * DRAWS_PER_SEED + times

    @cached_property
    def _loaded(self) -> tuple[nn.Module, Encoder, str]:
        settings = HuggingFace(path=self.model_name)
        model = load_policy(self.model_name, settings, device=ranks.device(self.device))
        return model, load_encoder(self.model_name, settings), pinned_identity(self.model_name)

    def _answer(self, questions: Sequence[Question]) -> list[Reply]:
        """Runs in a thread."""
        replies: dict[int, Reply] = {}
        groups: dict[tuple[float, int], list[int]] = {}
        fitted = [self._fit(question.request) for question in questions]
        for number, (question, (_, most)) in enumerate(zip(questions, fitted, strict=True)):
            groups.setdefault((question.temperature, most), []).append(number)
        was_quiet, console.quiet = console.quiet, True  # the terminal is inspect's
        try:
            for key, numbers in groups.items():
                requests = [fitted[number][0] for number in numbers]
                replies |= zip(numbers, self._completer(*key).complete_many(requests), strict=True)
        finally:
            console.quiet = was_quiet
        return [replies[number] for number in range(len(questions))]

    def _fit(self, request: Request) -> tuple[Request, int]:
        """A request with a limit, and the longest prompt that leaves room for it among the model's positions."""
        model = self._loaded[0]
        positions = getattr(model.config, "max_position_embeddings", None) or 2**31
        max_tokens = request.max_tokens or min(Request.max_tokens, positions // 2)
        if max_tokens >= positions:
            raise ConfigError(f"max_tokens={max_tokens}: {self.model_name} has {positions} positions; lower it")
        return replace(request, max_tokens=max_tokens), min(self.max_prompt_tokens, positions - max_tokens)

    def _completer(self, temperature: float, max_prompt_tokens: int) -> Completer:
        key = temperature, max_prompt_tokens
        if key not in self._completers:
            model, encoder, content = self._loaded
            self._completers[key] = local_completer(
                model,
                encoder,
                content=content,
                temperature=temperature,
                max_prompt_tokens=max_prompt_tokens,
                batch_rows=self.batch_rows,
                section="model",
                note=logger.warning,
            )
        return self._completers[key]
