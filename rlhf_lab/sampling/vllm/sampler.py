"""The sampler of `rollout=vllm`: groups of replies, or episodes of several turns, from servers asked for tokens.

Its interface is that of the lab's own sampler (`sampling/local.py`), and its rows mean the same: each has a seed of its
own for every turn, ends with a stop token, a piece of text or its last token, and carries the log-probabilities of the
distribution that it was drawn from. They are vLLM's: training computes them again before any ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from rlhf_lab.core import ranks
from rlhf_lab.models.divided import at_hand, plain
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.truncation import Truncation
from rlhf_lab.sampling.local import Samples, allowed_ids, completes_stop, own_prompts, require_finite
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.sampling.turns import NextTurn, RowTokens, end_turn
from rlhf_lab.sampling.vllm.client import Sampling, ServerFailed, Turn
from rlhf_lab.sampling.vllm.weights import Loaded, Servers, servers_of
from rlhf_lab.training.run import seed_for


@dataclass
class OpenRow:
    """A row that goes on.

    Attributes:
        number: prompt number · group + sample number.
        url: of the server that samples it.
        seed: of the row, from which those of its turns follow.
        context: prompt and what was added to it, as token ids.
        tokens: what was added.
    """

    number: int
    url: str
    seed: int
    context: list[int]
    tokens: RowTokens


class VllmSampler:
    """Samples from a model through vLLM servers, which get its weights when they have others.

    Attributes:
        exact: False: log-probabilities differ from training's by the arithmetic of another program.

    Args:
        stop_ids: tokens that end a turn.
        allowed: ids of the only tokens that may be sampled; empty allows all.
        decode: token ids → text, for turns that end with a piece of text (`rollout.stop`).
    """

    exact = False

    def __init__(
        self,
        settings: Vllm,
        stop_ids: Sequence[int],
        *,
        allowed: Sequence[int] = (),
        decode: Callable[[list[int]], str] | None = None,
        servers: Servers | None = None,
    ):
        self.settings, self.stop_ids = settings, tuple(stop_ids)
        self.truncation = Truncation(tuple(allowed), settings.top_k, settings.top_p)
        self.decode = decode
        self.servers = servers or servers_of(settings)

    def sample(
        self,
        model: nn.Module,
        prompts: Sequence[list[int]],
        group: int,
        seed: int | Sequence[int],
        *,
        temperature: float | None = None,
        next_turn: NextTurn | None = None,
        max_turns: int = 1,
    ) -> Samples:
        """`group` rows for each prompt; see `LocalSampler.sample`. The same arguments give the same rows."""
        sample_rows = self._prepared(model, prompts, group, seed, temperature, next_turn, max_turns)
        samples = Samples.gathered(prompts, group, sample_rows())
        self.servers.rest()  # all processes have their rows
        return samples

    def submit(
        self, model: nn.Module, prompts: Sequence[list[int]], group: int, seed: int | Sequence[int], **options: Any
    ) -> Callable[[], Samples]:
        """Let the servers sample with the weights that the model has now. Returns what waits for the samples.

        Takes what `sample` takes. Everything that all processes do together is done here and in waiting, so that
        training has the collectives to itself; the environment behind `next_turn` is asked in another thread.
        """
        sample_rows = self._prepared(model, prompts, group, seed, **options)
        wait = self.servers.begin(sample_rows)
        return lambda: Samples.gathered(prompts, group, wait())

    def close(self) -> None:
        """Give up what has been submitted and is not there yet."""
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
    ) -> Callable[[], dict[int, RowTokens]]:
        """Send the weights; what samples the rows of this process is left to be called."""
        temperature = self.settings.temperature if temperature is None else temperature
        if not prompts:
            return dict
        most_tokens = self.settings.most_tokens(max_turns)
        with at_hand([model]), plain(model) as whole_model:
            loaded = self.servers.update(whole_model, max(map(len, prompts)) + most_tokens)
        rows = []
        for place, i in enumerate(own_prompts(prompts)):
            # processes begin at different servers; a group stays together: its prompt is computed once
            url = loaded.urls[(ranks.rank() + place) % len(loaded.urls)]
            for g in range(group):
                rows.append(OpenRow(i * group + g, url, row_seed(seed, i, g, group), list(prompts[i]), RowTokens()))
        sampling = Sampling(
            temperature, self.stop_ids, self.truncation.top_k, self.truncation.top_p, self.truncation.allowed
        )
        return partial(self._sample_rows, rows, loaded, sampling, next_turn, most_tokens)

    def _sample_rows(
        self, rows: list[OpenRow], loaded: Loaded, sampling: Sampling, next_turn: NextTurn | None, most_tokens: int
    ) -> dict[int, RowTokens]:
        """What was added to each row, by number.

        Turn by turn: all rows sample one, then each is answered in the order of `rows`, in this thread. An environment
        is thus asked in the same order every time, and never twice at once.
        """
        finished = {row.number: row.tokens for row in rows}
        turn = 0
        while rows:
            open_rows = []
            for row, sampled in zip(rows, self._turns(rows, turn, loaded, sampling, most_tokens), strict=True):
                follows = self._take(row, sampled, next_turn, most_tokens)
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
        self, rows: Sequence[OpenRow], turn: int, loaded: Loaded, sampling: Sampling, most_tokens: int
    ) -> list[Turn]:
        """The next turn of each row, sampled side by side."""

        def ask(row: OpenRow) -> Turn:
            room = most_tokens - len(row.tokens.token_ids)
            # the first turn has the row's seed itself: one reply is drawn alike with and without an environment
            seed = seed_for(row.seed, "turn", turn) if turn else row.seed
            client = self.servers.client(row.url)
            values = sampling.values(min(self.settings.max_new_tokens, room), seed)
            sampled = client.generate(loaded.model, row.context, values)
            if set(sampled.versions) != {loaded.version} or sampled.model != loaded.model:
                raise client.failed(
                    f"sampled with the weights {', '.join(sampled.versions) or 'of nobody'} ({sampled.model}) and not "
                    f"with {loaded.version} ({loaded.model}): another run uses it, or it was started again"
                )
            return sampled

        pool = ThreadPoolExecutor(min(self.settings.batch_rows, len(rows)))
        try:
            return list(pool.map(ask, rows))
        except BaseException as error:
            self.servers.abort()
            if isinstance(error, ServerFailed):
                raise self.servers.explained(error) from error
            raise
        finally:
            # after an error the requests that are still waiting are given up; else there are none
            pool.shutdown(wait=False, cancel_futures=True)

    def _take(self, row: OpenRow, sampled: Turn, next_turn: NextTurn | None, most_tokens: int) -> list[int]:
        """Add a turn to its row. Returns what is read before the next one; nothing where the row is over."""
        spoken = sampled.token_ids
        length = self._length(spoken)
        row.tokens.token_ids += spoken[:length]
        row.tokens.sampled += [True] * length
        row.tokens.logps += sampled.logps[:length]
        row.context += spoken[:length]
        ended = spoken[length - 1] in self.stop_ids or self._ends_text(spoken[:length])
        return list(
            end_turn(
                row.tokens,
                row.number,
                spoken[:length],
                ended=ended,
                next_turn=next_turn or (lambda number, tokens: ()),
                most_tokens=most_tokens,
            )
        )

    def _length(self, tokens: list[int]) -> int:
        """Tokens of a turn up to the first that ends it: a server, which has no tokenizer, samples on behind a text."""
        if not self.settings.stop:
            return len(tokens)
        ends = (length for length in range(1, len(tokens)) if self._ends_text(tokens[:length]))
        return next(ends, len(tokens))

    def _ends_text(self, tokens: list[int]) -> bool:
        return completes_stop(tokens, self.settings.stop, self.decode)


def row_seed(seed: int | Sequence[int], prompt: int, sample: int, group: int) -> int:
    """The seed of a row: from the call's seed and the row's number, or its prompt's seed and its place in the group."""
    if isinstance(seed, Sequence):
        return seed_for(seed[prompt], "row", sample)
    return seed_for(seed, "row", prompt * group + sample)


def build(settings: Vllm, encoder: Encoder) -> VllmSampler:
    return VllmSampler(settings, encoder.stop_ids, allowed=allowed_ids(settings, encoder), decode=encoder.decode)
