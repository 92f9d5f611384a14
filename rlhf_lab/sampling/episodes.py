"""The one way to collect episodes: encode the tasks, sample, let an environment answer, decode.

Everything that samples from a policy goes through `EpisodeCollector`: evaluations, preference rounds, policy
optimisation, the replies and solutions that reward models train on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Protocol, runtime_checkable

from torch import nn

from rlhf_lab.config import registry
from rlhf_lab.core import ranks
from rlhf_lab.core.episodes import Environment, Episode, Finishing, Offering, Segment, Step, Task
from rlhf_lab.core.errors import LabError
from rlhf_lab.core.tools import call_id
from rlhf_lab.data.transcript import REPLY, quote, render_prompt, reply_message, reply_text, to_conversation
from rlhf_lab.models.divided import undivided
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.sampling.local import Samples
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.sampling.turns import RowTokens
from rlhf_lab.training.run import Run, seed_for


@runtime_checkable
class Asynchronous(Protocol):
    """A sampler that works beside the trainer."""

    def submit(self, *arguments: Any, **options: Any) -> Callable[[], Samples]:
        """Takes what `sample` takes, with the weights that the model has now; gives what waits for the samples."""
        ...

    def close(self) -> None:
        """Give up what has been submitted and is not there yet."""
        ...


class EpisodeCollector:
    """Collects episodes of the run's tasks with its sampler.

    Attributes:
        environment: what answers the policy; None where one reply is all.
        prompts_cut: prompts so far that lost their beginning.
    """

    def __init__(self, run: Run, encoder: Encoder):
        self.settings = run.config.rollout
        if run.config.engine != "native" and isinstance(self.settings, Vllm):
            self.settings = self.settings.local()  # vLLM samples inside TRL's trainer, and the lab beside it
        self.environment = run.corpus.environment
        self.corpus = run.corpus
        self.max_turns = run.config.data.max_turns
        # cut prompts are counted here and not in the encoder of the run, which counts the rows of its data
        self.encoder = replace(encoder, counts={})
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
        """`group` episodes of each task, a list per task. The same arguments give the same episodes.

        Args:
            temperature: in place of `rollout.temperature`; 0 is greedy.
            prompts: the tasks' prompts as token ids, where they are encoded already.
            openings: token ids with which the first turn of each task's episodes begins; they are read, not sampled.
        """
        collection = self._start(self._sample_now, model, tasks, group, seed, temperature, prompts, openings)
        return collection.episodes()

    def submit(self, model: nn.Module, tasks: Sequence[Task], group: int, seed: int) -> Collection:
        """What `collect` gives, without waiting for a sampler that works beside the trainer: the model may change."""
        start = self.sampler.submit if isinstance(self.sampler, Asynchronous) else self._sample_now
        return self._start(start, model, tasks, group, seed)

    def close(self) -> None:
        """Give up what has been submitted and is not there yet."""
        if isinstance(self.sampler, Asynchronous):
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
        """Begin to sample; see `collect`.

        Args:
            start: takes what `LocalSampler.sample` takes, and gives what waits for the samples.
        """
        if self.corpus.renderer is not None:
            self.corpus.renderer.require_model(getattr(undivided(model), "config", None))
        prompts = self.encode(tasks) if prompts is None else prompts
        openings = openings or [[]] * len(tasks)
        contexts = [[*prompt, *opening] for prompt, opening in zip(prompts, openings, strict=True)]
        conversations = None
        if self.environment is not None:
            conversations = Conversations(
                self.environment, self.encoder, self.reader, tasks, group, seed, max_turns=self.max_turns
            )
        wait_for_samples = start(
            model,
            contexts,
            group,
            seed,
            temperature=temperature,
            next_turn=conversations.answer if conversations else None,
            max_turns=self.max_turns,
        )

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
        """The tasks' prompts as token ids."""
        return [self.encoder.prompt(self.prompt(task), self.settings.max_prompt_tokens) for task in tasks]

    def prompt(self, task: Task) -> str:
        """The task's prompt, with the environment's tools where the model's chat template takes them."""
        if not isinstance(self.environment, Offering) or not self.encoder.takes_tools:
            return task.prompt
        definitions = self.environment.definitions(task)
        messages, tools = to_conversation(task.prompt)
        return task.prompt if tools or not definitions else render_prompt(messages, definitions)

    def reader(self, task: Task) -> ReplyReader:
        """What reads the replies of one episode of a task."""
        is_told_of_tools = (
            self.environment is not None and self.encoder.takes_tools and bool(to_conversation(self.prompt(task)).tools)
        )
        return ReplyReader(self.encoder, self.settings.stop, reads_calls=is_told_of_tools)

    def _episode(
        self, task: Task, prompt_ids: list[int], opening: Sequence[int], row: RowTokens, steps: Sequence[Step]
    ) -> Episode:
        """A row's tokens as segments, with the environment's rewards on the turns that earned them."""
        segments = [Segment(list(opening), sampled=False)] if opening else []
        begin = 0
        logps = iter(row.logps)
        rewards = iter(step.reward for step in steps)
        for sampled, members in groupby(row.sampled):
            end = begin + len(list(members))
            tokens = row.token_ids[begin:end]
            turn_logps = [next(logps) for _ in tokens] if sampled else []
            segments.append(Segment(tokens, sampled, turn_logps, float(next(rewards, 0.0)) if sampled else 0.0))
            begin = end
        turns = [segment.token_ids for segment in segments if segment.sampled]
        turns[0] = [*opening, *turns[0]]
        read = self.reader(task)
        texts = [read(tokens) for tokens in turns]
        prompt = self.prompt(task)
        for text, step in zip(texts[:-1], steps, strict=False):
            # what the policy said is quoted as messages are, so that it cannot forge a turn of the conversation
            prompt = prompt.removesuffix(REPLY) + render_prompt([reply_message(text), *step.messages])
        return Episode(task, prompt, texts[-1], prompt_ids, tuple(segments), row.ended)


class Collection:
    """Episodes that are being collected.

    Args:
        wait: gives them when they are all there. All processes must call it.
    """

    def __init__(self, wait: Callable[[], list[list[Episode]]]):
        self._wait = wait
        self._episodes: list[list[Episode]] | None = None

    def episodes(self) -> list[list[Episode]]:
        """A list per task. All processes must call it."""
        if self._episodes is None:
            self._episodes = self._wait()
        return self._episodes


class ReplyReader:
    """Reads the replies of one conversation, in order, as its environment gets them: text without what ends it.

    Args:
        stop: texts that end a reply.
        reads_calls: whether calls in the form of the chat template are read. They stand behind the text as in a
            transcript, each with an id that its result can name.
    """

    def __init__(self, encoder: Encoder, stop: Sequence[str], *, reads_calls: bool):
        self.encoder, self.stop, self.reads_calls = encoder, stop, reads_calls
        self.calls = 0  # of the conversation so far

    def __call__(self, reply_ids: Sequence[int]) -> str:
        if not self.reads_calls:
            return self.encoder.text(reply_ids, self.stop)
        message = self.encoder.message(reply_ids, self.stop)
        calls = message.get("tool_calls", [])
        if calls:
            # an id that the model wrote itself is what it expects of the result
            numbered = [{"id": call_id(number), **call} for number, call in enumerate(calls, start=self.calls)]
            message["tool_calls"] = numbered
            self.calls += len(calls)
        text = reply_text(message)
        if not calls and "tool_calls" in reply_message(text):
            # text that looks like calls in a transcript, which the template does not write so: quoted, it stays text
            text = quote(text)
        return text


class Conversations:
    """The environment's side of the episodes of one call of the sampler.

    Args:
        open_reader: task → what reads the replies of a new episode of it.
        seed: of the call; each episode's randomness follows from it and the episode's number.
        max_turns: most turns of the policy in an episode.
    """

    def __init__(
        self,
        environment: Environment,
        encoder: Encoder,
        open_reader: Callable[[Task], ReplyReader],
        tasks: Sequence[Task],
        group: int,
        seed: int,
        *,
        max_turns: int,
    ):
        self.environment, self.encoder, self.open_reader = environment, encoder, open_reader
        self.tasks, self.group, self.seed, self.max_turns = tasks, group, seed, max_turns
        self.states: dict[int, Any] = {}
        self.readers: dict[int, ReplyReader] = {}
        self.steps: dict[int, list[Step]] = {}

    def answer(self, row: int, tokens: list[int]) -> list[int]:
        """What the environment says behind a turn, as token ids; none where the episode is over."""
        if row not in self.states:
            task = self.tasks[row // self.group]
            self.states[row] = self.environment.reset(task, seed_for(self.seed, "environment", row))
            self.readers[row] = self.open_reader(task)
            self.steps[row] = []
        step = self.environment.step(self.states[row], self.readers[row](tokens))
        self.steps[row].append(step)
        if step.done or len(self.steps[row]) == self.max_turns:
            return []
        if not step.messages:
            raise LabError(
                f"{type(self.environment).__name__}.step says that the episode goes on, and gives no message that the "
                "policy could answer; return messages, or done=True"
            )
        return self.encoder.next_prompt(step.messages, ended=tokens[-1] in self.encoder.stop_ids)

    def exchange(self) -> dict[int, list[Step]]:
        """Steps of all episodes, by their number; every process has some of them."""
        if isinstance(self.environment, Finishing):
            for row, steps in self.steps.items():
                if not steps[-1].done:
                    steps[-1] = replace(steps[-1], reward=steps[-1].reward + self.environment.finish(self.states[row]))
        return {row: steps for process in ranks.exchange(self.steps) for row, steps in process.items()}
