"""Collection of episodes: encode the tasks, sample, let an environment answer, decode.

All sampling from a policy uses `EpisodeCollector`: evaluations, preference rounds, policy optimisation, and the
responses and solutions that reward models train on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import groupby
from typing import Any

from torch import nn

from rlhf_lab.config import registry
from rlhf_lab.core import ranks
from rlhf_lab.core.episodes import Environment, Episode, Finishing, Offering, Segment, Step, Task
from rlhf_lab.core.errors import LabError
from rlhf_lab.core.text import well_formed_value
from rlhf_lab.core.tools import call_id
from rlhf_lab.data.transcript import REPLY, quote, render_prompt, response_message, response_text, to_conversation
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.sharded import undivided
from rlhf_lab.sampling.local import Samples
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.sampling.turns import RowTokens
from rlhf_lab.training.run import Run, seed_for


class EpisodeCollector:
    """Collector of episodes of the run's tasks, with the run's sampler.

    Args:
        further_stop: texts that end a turn, in addition to those of `rollout.stop`.

    Attributes:
        environment: environment that answers the policy; None if an episode is a single response.
        prompts_cut: number of prompts so far that lost their start.
    """

    def __init__(self, run: Run, encoder: Encoder, *, further_stop: Sequence[str] = ()):
        self.settings = run.config.rollout
        if run.config.engine != "native" and isinstance(self.settings, Vllm):
            self.settings = self.settings.local()  # vLLM samples inside TRL's trainer; all else is sampled built-in
        if further_stop:
            self.settings = replace(self.settings, stop=(*self.settings.stop, *further_stop))
        self.environment = run.corpus.environment
        self.corpus = run.corpus
        self.max_turns = run.config.data.max_turns
        # counts of its own: the encoder of the run counts the rows of its data
        self.encoder = encoder.uncounted()
        self.sampler = registry.build("rollout", self.settings, encoder)

    @property
    def prompts_cut(self) -> int:
        return sum(self.encoder.counts.values())

    def collect(
        self,
        model: nn.Module,
        tasks: Sequence[Task],
        group: int,
        seed: int,
        *,
        temperature: float | None = None,
        prompts: Sequence[list[int]] | None = None,
        openings: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Episode]]:
        """Collect `group` episodes of each task, a list per task. The same arguments give the same episodes.

        Args:
            temperature: replaces `rollout.temperature`; 0 is greedy.
            prompts: token ids of the tasks' prompts, if they are already encoded.
            openings: token ids with which the first turn of each task's episodes starts. They are read, not sampled,
                and count as tokens of the turn.
        """
        return self._start(self._sample_now, model, tasks, group, seed, temperature, prompts, openings).episodes()

    def submit(self, model: nn.Module, tasks: Sequence[Task], group: int, seed: int) -> Collection:
        """Start `collect` without waiting for a parallel sampler; the model may change in the meantime."""
        # only a sampler that runs in parallel with the trainer has `submit` and `close`
        start = getattr(self.sampler, "submit", self._sample_now)
        return self._start(start, model, tasks, group, seed)

    def close(self) -> None:
        """Abandon submitted sampling that has not finished."""
        if hasattr(self.sampler, "close"):
            self.sampler.close()

    def _sample_now(self, *arguments: Any, **options: Any) -> Callable[[], Samples]:
        samples = self.sampler.sample(*arguments, **options)
        return lambda: samples

    def _start(
        self,
        start: Callable[..., Callable[[], Samples]],
        model: nn.Module,
        tasks: Sequence[Task],
        group: int,
        seed: int,
        temperature: float | None = None,
        prompts: Sequence[list[int]] | None = None,
        openings: Sequence[Sequence[int]] | None = None,
    ) -> Collection:
        """Start sampling; see `collect`.

        Args:
            start: takes the arguments of `LocalSampler.sample` and returns a function that waits for the samples.
        """
        if self.corpus.renderer is not None:
            self.corpus.renderer.require_model(getattr(undivided(model), "config", None))
        prompts = self.encode(tasks) if prompts is None else prompts
        opened = {"opened": [len(opening) for opening in openings]} if openings else {}
        openings = openings or [[]] * len(tasks)
        # an opening is read like a prompt, but becomes part of the first turn's text
        contexts = [[*prompt, *opening] for prompt, opening in zip(prompts, openings, strict=True)]
        conversations = None
        if self.environment is not None:
            conversations = Conversations(
                self.environment, self.encoder, self.reader, tasks, group, seed, max_turns=self.max_turns
            )
        next_turn = conversations.answer if conversations else None
        options = {"temperature": temperature, "next_turn": next_turn, "max_turns": self.max_turns, **opened}
        wait_for_samples = start(model, contexts, group, seed, **options)

        def wait_for_episodes() -> list[list[Episode]]:
            samples = wait_for_samples()
            steps = conversations.exchange() if conversations else {}
            return [
                [
                    self._episode(task, prompts[i], openings[i], row, steps.get(i * group + g, []))
                    for g, row in enumerate(samples.rows_BG[i])
                ]
                for i, task in enumerate(tasks)
            ]

        return Collection(wait_for_episodes)

    def encode(self, tasks: Sequence[Task]) -> list[list[int]]:
        limit = self.settings.max_prompt_tokens
        return [self.encoder.prompt(self.prompt(task), limit) for task in tasks]

    def prompt(self, task: Task) -> str:
        """Return the task's prompt, with the environment's tools if the model's chat template supports tools."""
        if not isinstance(self.environment, Offering) or not self.encoder.takes_tools:
            return task.prompt
        definitions = self.environment.definitions(task)
        messages, tools = to_conversation(task.prompt)
        return task.prompt if tools or not definitions else render_prompt(messages, definitions)

    def reader(self, task: Task) -> ResponseReader:
        """Return a reader for the responses of one episode of a task."""
        is_shown_tools = (
            self.environment is not None and self.encoder.takes_tools and bool(to_conversation(self.prompt(task)).tools)
        )
        return ResponseReader(self.encoder, self.settings.stop, reads_calls=is_shown_tools)

    def _episode(
        self, task: Task, prompt_ids: list[int], opening: Sequence[int], row: RowTokens, steps: Sequence[Step]
    ) -> Episode:
        """Return a row as an episode: its tokens as segments, with the environment's rewards on the sampled turns."""
        segments = [Segment(list(opening), sampled=False)] if opening else []
        start = 0
        logps = iter(row.logps)
        rewards = iter(step.reward for step in steps)
        # a run of tokens with the same `sampled` is one segment: a turn of the policy, or the environment's tokens
        for sampled, members in groupby(row.sampled):
            end = start + len(list(members))
            tokens = row.token_ids[start:end]
            turn_logps = [next(logps) for _ in tokens] if sampled else []
            reward = float(next(rewards, 0.0)) if sampled else 0.0
            segments.append(Segment(tokens, sampled, turn_logps, reward))
            start = end
        turns = [segment.token_ids for segment in segments if segment.sampled]
        turns[0] = [*opening, *turns[0]]
        read = self.reader(task)
        texts = [read(tokens) for tokens in turns]
        prompt = self.prompt(task)
        for text, step in zip(texts[:-1], steps, strict=False):
            # the policy's output is quoted as messages are, so that it cannot forge a turn of the conversation
            turn = render_prompt([response_message(text), *step.messages])
            prompt = prompt.removesuffix(REPLY) + turn
        return Episode(task, prompt, texts[-1], prompt_ids, tuple(segments), row.finished)


class Collection:
    """Episodes that are being collected.

    Args:
        wait: waits for all episodes and returns them. All processes must call it.
    """

    def __init__(self, wait: Callable[[], list[list[Episode]]]):
        self._wait = wait
        self._episodes: list[list[Episode]] | None = None

    def episodes(self) -> list[list[Episode]]:
        """Return a list of episodes per task. All processes must call it."""
        if self._episodes is None:
            self._episodes = self._wait()
        return self._episodes


class ResponseReader:
    """Reader of a conversation's responses, in order. It returns text for the environment, without EOS or stop text.

    Args:
        stop: texts that end a response.
        reads_calls: True if tool calls in the form of the chat template are read. They follow the text as in a
            transcript, each with an id for its result.
    """

    def __init__(self, encoder: Encoder, stop: Sequence[str], *, reads_calls: bool):
        self.encoder = encoder
        self.stop = stop
        self.reads_calls = reads_calls
        self.calls = 0  # tool calls of the conversation so far

    def __call__(self, response_ids: Sequence[int]) -> str:
        if not self.reads_calls:
            return self.encoder.text(response_ids, self.stop)
        message = self.encoder.message(response_ids, self.stop)
        calls = message.get("tool_calls", [])
        if calls:
            # an id that the model wrote itself is kept, because the model expects it in the result
            numbered: list[dict[str, Any]] = []
            for number, call in enumerate(calls, start=self.calls):
                numbered.append({"id": call_id(number), **call})
            message["tool_calls"] = numbered
            self.calls += len(calls)
        text = response_text(message)
        if not calls and "tool_calls" in response_message(text):
            # The text looks like tool calls of a transcript, but is none in the template's form: quoting keeps it text.
            text = quote(text)
        return text


@dataclass(eq=False)
class Conversations:
    """The environment's side of the episodes of one call of the sampler.

    Attributes:
        open_reader: function from a task to the reader of the responses of a new episode of it.
        seed: seed of the call; an episode's randomness depends on it and on the episode's index.
        max_turns: maximum number of turns of the policy in an episode.
    """

    environment: Environment
    encoder: Encoder
    open_reader: Callable[[Task], ResponseReader]
    tasks: Sequence[Task]
    group: int
    seed: int
    _: KW_ONLY
    max_turns: int

    def __post_init__(self) -> None:
        self.states: dict[int, Any] = {}
        self.readers: dict[int, ResponseReader] = {}
        self.steps: dict[int, list[Step]] = {}

    def answer(self, row: int, tokens: list[int]) -> list[int]:
        """Return the environment's answer to a turn as token ids; empty if the episode has finished."""
        if row not in self.states:
            task = self.tasks[row // self.group]
            self.states[row] = self.environment.reset(task, seed_for(self.seed, "environment", row))
            self.readers[row] = self.open_reader(task)
            self.steps[row] = []
        text = self.readers[row](tokens)
        step = self.environment.step(self.states[row], text)
        # an environment may be user code, so its messages are checked for text that cannot be encoded
        step = Step(well_formed_value(list(step.messages)), step.reward, step.done)
        self.steps[row].append(step)
        if step.done or len(self.steps[row]) == self.max_turns:
            return []
        if not step.messages:
            raise LabError(
                f"{type(self.environment).__name__}.step returned no messages although the episode continues, so the "
                "policy has nothing to answer; return messages, or done=True"
            )
        finished = tokens[-1] in self.encoder.stop_ids
        return self.encoder.next_prompt(step.messages, finished=finished)

    def exchange(self) -> dict[int, list[Step]]:
        """Return the environment's steps of the episodes of all processes, by row index."""
        # an environment with `finish` also rewards episodes that were truncated before it ended them
        if isinstance(self.environment, Finishing):
            for row, steps in self.steps.items():
                if not steps[-1].done:
                    last = steps[-1]
                    final_reward = self.environment.finish(self.states[row])
                    steps[-1] = replace(last, reward=last.reward + final_reward)
        all_steps: dict[int, list[Step]] = {}
        for process_steps in ranks.exchange(self.steps):
            all_steps.update(process_steps)
        return all_steps
