"""The sampler of `rollout=vllm`: it gets groups of responses, or episodes of several turns, from vLLM servers.

Its interface is that of the built-in sampler (`sampling/local.py`), and its rows have the same meaning. Each row has
its own seed for every turn, and ends with a stop token, a stop text or its last token. It carries the log-probabilities
of the distribution from which it was sampled. They are computed by vLLM, so training recomputes them before any ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from rlhf_lab.core import ranks
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.sharded import at_hand, unsharded
from rlhf_lab.sampling.local import LocalSampler, Samples, allowed_ids, longest_row, own_prompts, require_finite
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.sampling.turns import NextTurn, RowTokens, end_turn
from rlhf_lab.sampling.vllm.client import SampledTurn, SamplingParams, ServerFailed
from rlhf_lab.sampling.vllm.weights import Loaded, Servers, servers_of
from rlhf_lab.training.run import seed_for


@dataclass
class OpenRow:
    """A row that has not finished.

    Attributes:
        number: index of the row, prompt index · group + sample index.
        url: address of the server that samples it.
        seed: seed of the row, from which the seeds of its turns are derived.
        context: token ids of the prompt and of everything added to it.
        opened: tokens of the first turn that are part of the prompt.
    """

    number: int
    url: str
    seed: int
    context: list[int]
    tokens: RowTokens
    opened: int


class VllmSampler(LocalSampler):
    """Sampler of a model through vLLM servers, which receive its weights when they have different ones.

    It is not exact: another program computes the log-probabilities, so they differ from training's.
    """

    settings: Vllm

    def __init__(self, settings: Vllm, stop_ids: Sequence[int], *, servers: Servers | None = None, **options: Any):
        super().__init__(settings, stop_ids, **options)
        self.exact = False
        self.servers = servers or servers_of(settings)

    def sample(
        self, model: nn.Module, prompts: Sequence[list[int]], group: int, seed: int | Sequence[int], **options: Any
    ) -> Samples:
        """Sample `group` rows for each prompt; see `LocalSampler.sample`. The same arguments give the same rows."""
        sample_rows = self._prepared(model, prompts, group, seed, **options)
        samples = Samples.gathered(prompts, group, sample_rows())
        self.servers.rest()  # `gathered` returns once all processes have their rows, so no server is needed any more
        return samples

    def submit(
        self, model: nn.Module, prompts: Sequence[list[int]], group: int, seed: int | Sequence[int], **options: Any
    ) -> Callable[[], Samples]:
        """Start sampling with the model's current weights. Returns a function that waits for the samples.

        The arguments are those of `sample`. Collective operations run only in this call and in the returned function,
        never in another thread in parallel with training. The environment behind `next_turn` is called in another
        thread.
        """
        sample_rows = self._prepared(model, prompts, group, seed, **options)
        wait = self.servers.start_sampling(sample_rows)
        return lambda: Samples.gathered(prompts, group, wait())

    def close(self) -> None:
        self.servers.give_up()

    def _prepared(
        self,
        model: nn.Module,
        prompts: Sequence[list[int]],
        group: int,
        seed: int | Sequence[int],
        temperature: float | None = None,
        next_turn: NextTurn | None = None,
        max_turns: int = 1,
        opened: Sequence[int] | None = None,
    ) -> Callable[[], dict[int, RowTokens]]:
        """Send the weights. Returns a function that samples the rows of this process."""
        temperature = self.settings.temperature if temperature is None else temperature
        if not prompts:
            return dict
        max_tokens_left = self.settings.max_tokens_left(max_turns)
        opened = opened or [0] * len(prompts)
        with at_hand([model]), unsharded(model) as full_model:
            max_length = longest_row(prompts, opened, max_tokens_left)
            loaded = self.servers.update(full_model, max_length)
        rows = []
        for position, i in enumerate(own_prompts(prompts)):
            # Processes start at different servers. A group stays on one server, so its prompt is computed once.
            server = (ranks.rank() + position) % len(loaded.urls)
            url = loaded.urls[server]
            for g in range(group):
                tokens = RowTokens()
                seed_of_row = row_seed(seed, i, g, group)
                rows.append(OpenRow(i * group + g, url, seed_of_row, list(prompts[i]), tokens, opened[i]))
        sampling = SamplingParams(
            temperature, self.stop_ids, self.truncation.top_k, self.truncation.top_p, self.truncation.allowed
        )
        return partial(self._request_rows, rows, loaded, sampling, next_turn, max_tokens_left)

    def _request_rows(
        self,
        rows: list[OpenRow],
        loaded: Loaded,
        sampling: SamplingParams,
        next_turn: NextTurn | None,
        max_tokens_left: int,
    ) -> dict[int, RowTokens]:
        """Return the tokens added to each row, by row index.

        In each turn all rows sample in parallel. The environment then answers them in the order of `rows`, in this
        thread: its calls always have the same order, and never overlap.
        """
        finished = {row.number: row.tokens for row in rows}
        turn = 0
        while rows:
            open_rows = []
            turns = self._turns(rows, turn, loaded, sampling, max_tokens_left)
            for row, sampled in zip(rows, turns, strict=True):
                follows = self._take(row, sampled, next_turn, max_tokens_left)
                if follows:
                    row.tokens.token_ids += follows
                    row.tokens.sampled += [False] * len(follows)
                    row.context += follows
                    open_rows.append(row)
            rows = open_rows
            turn += 1
        require_finite(finished)
        return finished

    def _turns(
        self, rows: Sequence[OpenRow], turn: int, loaded: Loaded, sampling: SamplingParams, max_tokens_left: int
    ) -> list[SampledTurn]:

        def ask(row: OpenRow) -> SampledTurn:
            capacity = max_tokens_left - row.opened - len(row.tokens.token_ids)
            slots = self.settings.max_new_tokens - (0 if turn else row.opened)
            # The first turn uses the row's seed itself: a response is the same with and without an environment.
            seed = seed_for(row.seed, "turn", turn) if turn else row.seed
            client = self.servers.client(row.url)
            values = sampling.values(max(1, min(slots, capacity)), seed)
            sampled = client.generate(loaded.model, row.context, values)
            if set(sampled.versions) != {loaded.version} or sampled.model != loaded.model:
                # The version of every token is checked, because another run can replace the weights at any time.
                used = ", ".join(sampled.versions) or "an unknown version"
                raise client.failed(
                    f"sampled with weights {used} ({sampled.model}) instead of {loaded.version} ({loaded.model}): "
                    "another run uses the server, or it was restarted"
                )
            return sampled

        # one thread per request: vLLM batches concurrent requests itself
        pool = ThreadPoolExecutor(min(self.settings.batch_rows, len(rows)))
        try:
            return list(pool.map(ask, rows))
        except BaseException as error:
            self.servers.abort()
            if isinstance(error, ServerFailed):
                raise self.servers.explained(error) from error
            raise
        finally:
            # after an error this cancels the requests that have not started; otherwise there are none
            pool.shutdown(wait=False, cancel_futures=True)

    def _take(self, row: OpenRow, sampled: SampledTurn, next_turn: NextTurn | None, max_tokens_left: int) -> list[int]:
        """Add a turn to its row. Returns the tokens that the row reads before its next turn; empty at its end."""
        length = len(sampled.token_ids)
        if self.settings.stop:  # a server has no tokenizer, so it samples beyond the first stop text
            ends = (size for size in range(1, length) if self.ends_text(sampled.token_ids[:size]))
            length = next(ends, length)
        spoken = sampled.token_ids[:length]
        row.tokens.token_ids += spoken
        row.tokens.sampled += [True] * length
        row.tokens.logps += sampled.logps[:length]
        row.context += spoken
        finished = spoken[-1] in self.stop_ids or self.ends_text(spoken)
        next_turn = next_turn or (lambda number, tokens: ())
        left = max_tokens_left - row.opened
        follows = end_turn(row.tokens, row.number, spoken, finished=finished, next_turn=next_turn, max_tokens_left=left)
        return list(follows)


def row_seed(seed: int | Sequence[int], prompt: int, sample: int, group: int) -> int:
    """Return the seed of a row, from the call's seed and its index, or its prompt's seed and its sample index."""
    if isinstance(seed, Sequence):
        return seed_for(seed[prompt], "row", sample)
    return seed_for(seed, "row", prompt * group + sample)


def build(settings: Vllm, encoder: Encoder) -> VllmSampler:
    return VllmSampler(settings, encoder.stop_ids, allowed=allowed_ids(settings, encoder), decode=encoder.decode)
