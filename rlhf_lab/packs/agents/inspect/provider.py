"""Provider of our models for inspect: `inspect eval TASK.py --model rlhf_lab/DIR`.

Completions are those of `judge=local`: the built-in sampler generates them, and they depend only on the request and its
draw. The n-th request with the same content gets draw n of its seed. Epochs therefore differ at a positive temperature,
and a second run reproduces the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
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
from rlhf_lab.packs.agents.inspect.messages import check_settings, check_tool_choice, from_response, to_request
from rlhf_lab.packs.judging.judges.backends.local import local_completer
from rlhf_lab.packs.judging.judges.backends.settings import LocalModel
from rlhf_lab.packs.judging.judges.requests import Completer, Completion, CompletionRequest

logger = getLogger(__name__)

WINDOW_S = 0.02
"""Seconds to wait for further requests. inspect's tasks send requests within milliseconds of each other, and a batch of
even a tiny model takes tenths of a second."""
DRAWS_PER_SEED = 1 << 20  # more requests than any evaluation sends: two seeds never share a draw


SamplingRequest = tuple[CompletionRequest, float]
"""A request and its sampling temperature."""


@modelapi(name="rlhf_lab")
class LabModel(ModelAPI):
    """A causal language model from a directory or hub id, sampled by the built-in sampler.

    Args:
        device: cpu, cuda, or auto, which means a GPU if there is one.
        max_prompt_tokens: maximum number of prompt tokens; longer prompts lose their start, with a warning.
        batch_rows: number of requests in a batch; also inspect's number of connections, unless inspect adapts it.
        window_s: seconds that a batch waits for further requests.

    Raises:
        ConfigError: the model does not exist.
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
            raise ConfigError(f"model_base_url={base_url}: models of rlhf_lab run in this process; leave it out")
        self.device, self.max_prompt_tokens, self.batch_rows = device, max_prompt_tokens, batch_rows
        self._gatherer: Gatherer[SamplingRequest, Completion] = Gatherer(self._answer, window_s)
        # number of earlier requests with the same content and seed
        self._times_asked: Counter[tuple[str, int]] = Counter()
        self._warned: set[str] = set()
        # by temperature and maximum number of prompt tokens
        self._completers: dict[tuple[float, int], Completer] = {}

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """See `ModelAPI.generate`. Raise ConfigError for unsupported settings and messages."""
        values = config.model_dump(exclude_none=True)
        self._warn(check_settings(values))
        check_tool_choice(tool_choice)
        messages = [message.model_dump() for message in input]
        definitions = [tool.model_dump(exclude_none=True) for tool in tools]
        request = to_request(messages, definitions, values)
        # The draw is part of the request, so equal requests of later epochs get other samples.
        request = replace(request, draw=self._draw(request, values.get("seed", 0)))
        temperature = values.get("temperature", LocalModel.temperature)
        response = await self._gatherer.ask((request, temperature))
        return ModelOutput.model_validate(from_response(response, self.model_name))

    def max_connections(self) -> int:
        return self.batch_rows

    def connection_key(self) -> str:
        return self.model_name

    def _warn(self, settings: Sequence[str]) -> None:
        for name in settings:
            if name not in self._warned:
                self._warned.add(name)
                logger.warning(f"rlhf_lab: {name} has no effect for a model on this machine")

    def _draw(self, request: CompletionRequest, seed: int) -> int:
        key = request.digest({}), seed
        times = self._times_asked[key]
        self._times_asked[key] += 1
        # Each seed has its own range of draws, so that different seeds never get the same draw.
        return seed * DRAWS_PER_SEED + times

    @cached_property
    def _loaded(self) -> tuple[nn.Module, Encoder, str]:
        # Loaded on first use, in the thread of the first batch.
        settings = HuggingFace(path=self.model_name)
        model = load_policy(self.model_name, settings, device=ranks.device(self.device))
        encoder = load_encoder(self.model_name, settings)
        return model, encoder, pinned_identity(self.model_name)

    def _answer(self, questions: Sequence[SamplingRequest]) -> list[Completion]:
        """Answer a batch of requests; runs in a thread."""
        responses: dict[int, Completion] = {}
        groups: dict[tuple[float, int], list[int]] = {}
        # A completer has one temperature and one prompt limit, so requests are grouped by both.
        fitted = [self._fit(request) for request, _ in questions]
        for index, ((_, temperature), (_, largest)) in enumerate(zip(questions, fitted, strict=True)):
            groups.setdefault((temperature, largest), []).append(index)
        was_quiet, console.quiet = console.quiet, True  # inspect's own display uses the terminal
        try:
            for key, numbers in groups.items():
                requests = [fitted[number][0] for number in numbers]
                responses |= zip(numbers, self._completer(*key).complete_many(requests), strict=True)
        finally:
            console.quiet = was_quiet
        return [responses[number] for number in range(len(questions))]

    def _fit(self, request: CompletionRequest) -> tuple[CompletionRequest, int]:
        """Return the request with `max_tokens` set, and the maximum number of prompt tokens that then fit into the
        model's positions.
        """
        model = self._loaded[0]
        # A model without a stated number of positions gets one that no prompt reaches.
        positions = getattr(model.config, "max_position_embeddings", None) or 2**31
        # Without a limit, the response gets at most half of the positions, so that the prompt keeps the other half.
        max_tokens = request.max_tokens or min(CompletionRequest.max_tokens, positions // 2)
        if max_tokens >= positions:
            raise ConfigError(
                f"max_tokens={max_tokens} leaves no space for a prompt in the {positions} positions of "
                f"{self.model_name}; lower it"
            )
        return replace(request, max_tokens=max_tokens), min(self.max_prompt_tokens, positions - max_tokens)

    def _completer(self, temperature: float, max_prompt_tokens: int) -> Completer:
        key = temperature, max_prompt_tokens
        if key not in self._completers:  # all of them share one model in memory
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
