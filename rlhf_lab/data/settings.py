"""Settings of every data source (`data=…`). Imports no torch; see `rlhf_lab/config/registry.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Self

from rlhf_lab.config import registry, schema
from rlhf_lab.config.registry import register
from rlhf_lab.core.errors import ConfigError, require
from rlhf_lab.core.user_code import names_object


@dataclass(frozen=True)
class AnnotatorSettings:
    """The simulated human: Bradley-Terry on the true reward plus biases that the truth does not reward.

    Preference logit = (gold + length_bias · words/10 + affirmation_bias · min(affirmations, 2)
    + closing_bias · min(closings, 2)), differenced and divided by `temperature`.

    Args:
        length_bias: reward per 10 words. 0 is an annotator without length bias.
        affirmation_bias: reward per hollow affirmation, at most two count.
        closing_bias: reward per closing offer, at most two count.
        temperature: noise of the choice; 0 always takes the better side.
    """

    length_bias: float = 0.6
    affirmation_bias: float = 0.5
    closing_bias: float = 0.3
    temperature: float = 0.7

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} is negative; 0 is a noiseless annotator")


@dataclass(frozen=True)
class GraderSettings:
    """The simulated rubric judge: the world's true criteria, each 1…5, as someone else than the annotator sees them.

    seen = true + `noise` · N(0, 1), fixed for a reply; grade = seen + `halo` · (mean of seen − seen) + `leniency`
    + `length_bias` · words/10, rounded and cut to 1…5.

    Args:
        noise: standard deviation of the error of each criterion, points.
        halo: share, 0…1, by which each criterion is drawn to the judge's mean impression of the reply.
        leniency: points added to every grade; negative is strict.
        length_bias: points per 10 words on every criterion. 0 is a judge without a taste for length.
        whole_points: round to whole points.
    """

    noise: float = 1.5
    halo: float = 0.3
    leniency: float = 0.3
    length_bias: float = 0.2
    whole_points: bool = True

    def __post_init__(self) -> None:
        if self.noise < 0:
            raise ValueError(f"noise={self.noise} is negative; 0 is a judge without noise")
        if not 0 <= self.halo <= 1:
            raise ValueError(f"halo={self.halo} is a share, 0…1")


@dataclass(frozen=True)
class DataSettings:
    """Common to every source.

    Class attributes:
        preferences, answers, graded: whether the data have preference pairs, answers that can be checked, and grades on
            a rubric or a judge who gives them.
        demonstrations: whether the data have replies to imitate.
        unpaired: whether the data have single replies that were liked or disliked.
        steps: whether the data's world can say of each step of a reply whether it is right.
        audio: whether replies are streams of a codec, so that they can be heard.
        phones: of such data, whether it is known which phones a reply should say.
        drawn: whether the data are drawn from an embedded world, so that every seed can have data of its own.
        true_reward: whether the true reward of any reply is known.
        max_turns: most turns of an episode; above 1 where an environment answers the policy.
    """

    preferences: ClassVar[bool] = True
    answers: ClassVar[bool] = False
    graded: ClassVar[bool] = False
    demonstrations: ClassVar[bool] = True
    unpaired: ClassVar[bool] = False
    steps: ClassVar[bool] = False
    audio: ClassVar[bool] = False
    phones: ClassVar[bool] = True
    drawn: ClassVar[bool] = False
    true_reward: ClassVar[bool] = False
    max_turns: ClassVar[int] = 1

    def of_run(self, seed: int) -> Self:
        """These settings in a run with this seed: every seed of the data that is None has its value."""
        return self

    def parts(self) -> dict[str, DataSettings]:
        """The sources that a mix is made of, by name; none for a source by itself."""
        return {}


@dataclass(frozen=True)
class WorldSettings(DataSettings):
    """Data that are drawn from an embedded world.

    By default everything is drawn anew for every seed of a run, so that a study over seeds repeats the whole
    experiment and not training alone. A seed that is written stays the same in all runs, and the study says so.

    Args:
        seed: draws the training split: prompts, replies and what the annotator says of them. None is the run's seed.
        test_seed: draws the held-out split, in the world that `seed` (or, where there is one, `facts_seed`) draws: only
            together with that one does it keep the test prompts. None is `seed`.
    """

    drawn: ClassVar[bool] = True
    seed: int | None = None
    test_seed: int | None = None

    def __post_init__(self) -> None:
        for seed_field in (item for item in fields(self) if item.name.endswith("seed")):
            value = getattr(self, seed_field.name)
            if (value or 0) < 0:
                raise ValueError(f"{seed_field.name}={value} is negative; use 0 or more")

    def split_seeds(self) -> tuple[int, int]:
        """The seeds of the training and of the held-out split; those of seed 0 outside a run."""
        train = self.seed or 0
        return train, train if self.test_seed is None else self.test_seed

    def of_run(self, seed: int) -> Self:
        train, test = replace(self, seed=seed if self.seed is None else self.seed).split_seeds()
        return replace(self, seed=train, test_seed=test)


@register("data", "mini_hh")
@dataclass(frozen=True)
class MiniHH(WorldSettings):
    """The embedded dialogue world: prompts, replies, a known true reward and a biased annotator. Downloads nothing.

    Args:
        facts_seed: draws the world's facts. None is `seed`.
        domains, topics, attributes: size of the knowledge base; facts = domains × topics × attributes.
        train_pairs, test_pairs: preference pairs per split; the prompts of the splits never overlap.
        annotator: who labels the pairs.
        grader: who grades single replies.
    """

    graded: ClassVar[bool] = True
    true_reward: ClassVar[bool] = True
    facts_seed: int | None = None
    domains: int = 6
    topics: int = 4
    attributes: int = 5
    smoke: ClassVar[dict[str, int]] = {"train_pairs": 2000, "test_pairs": 200}
    smoke_real: ClassVar[dict[str, int]] = {"train_pairs": 16, "test_pairs": 16}
    train_pairs: int = 16000
    test_pairs: int = 1000
    annotator: AnnotatorSettings = field(default_factory=AnnotatorSettings)
    grader: GraderSettings = field(default_factory=GraderSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in (("domains", 1, 6), ("topics", 1, 4), ("attributes", 3, 5)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)} is outside {low}…{high}")
        for name in ("train_pairs", "test_pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; at least 1 pair is needed")

    def world_seed(self) -> int:
        """The seed of the facts; that of seed 0 outside a run."""
        return self.split_seeds()[0] if self.facts_seed is None else self.facts_seed

    def of_run(self, seed: int) -> Self:
        settings = super().of_run(seed)
        return replace(settings, facts_seed=settings.world_seed())


@register("data", "arithmetic")
@dataclass(frozen=True)
class Arithmetic(WorldSettings):
    """The embedded arithmetic world: word problems in the form of GSM8K, whose every step can be checked.

    Args:
        min_steps, max_steps: steps of a solution.
        largest: the largest total of a story; operands of + and − are at most a quarter of it. Up to 50, the
            tokenizer of `model=tiny` has a token for every number.
        train_problems, test_problems: distinct problems per split; no two of different splits have the same numbers.
        slip: probability that a demonstration has a wrong step, from which it goes on. So this share of a perfect
            imitator's answers is wrong.
        temperature: noise of the annotator behind `oracle.prefer`, in answers; 0 always takes the better side.
    """

    answers: ClassVar[bool] = True
    steps: ClassVar[bool] = True
    min_steps: int = 2
    max_steps: int = 4
    largest: int = 50
    smoke: ClassVar[dict[str, int]] = {"train_problems": 2000, "test_problems": 100}
    smoke_real: ClassVar[dict[str, int]] = {"train_problems": 16, "test_problems": 16}
    train_problems: int = 16000
    test_problems: int = 500
    slip: float = 0.15
    temperature: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("train_problems", "test_problems"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; at least 1 problem is needed")
        if not 1 <= self.min_steps <= self.max_steps:
            raise ValueError(f"min_steps={self.min_steps} must be between 1 and max_steps={self.max_steps}")
        if not 10 <= self.largest <= 10_000:
            raise ValueError(f"largest={self.largest} is outside 10…10000")
        if not 0 <= self.slip <= 1:
            raise ValueError(f"slip={self.slip} is a probability, 0…1")
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} is negative; 0 is a noiseless annotator")


@register("data", "repairs")
@dataclass(frozen=True)
class Repairs(WorldSettings):
    """The embedded world of repairs: small programs with planted bugs, each with an example that fails.

    A training row is a demonstration; an episode writes lines anew, reads what running the program gives, and writes
    again. Bugs have three tiers: 1, a name that is not defined; 2, a wrong number, operator or comparison; 3, two such
    words, of which the example shows one.

    Args:
        train_tasks, test_tasks: tasks per split, the tiers in turn. A training task has one demonstration.
        min_lines, max_lines: of a program, without the one that returns.
        told: probability that a comment says what a line should do. What no comment tells only running the program can.
        revise: probability that a demonstration has a wrong try before its repair, and another behind each of them.
            Wrong tries are read, and not learned; with 0 there is nothing to read.
        shown_run: `own`, what running the program gave; `other`, of a program that fails, what a failing program of
            another task gave: what is left of success then is not due to reading.
        turns: most turns of an episode, with the one that says that it is done.
    """

    preferences: ClassVar[bool] = False
    true_reward: ClassVar[bool] = True
    smoke: ClassVar[dict[str, int]] = {"train_tasks": 2000, "test_tasks": 60}
    smoke_real: ClassVar[dict[str, int]] = {"train_tasks": 16, "test_tasks": 16}
    train_tasks: int = 24000
    test_tasks: int = 600
    min_lines: int = 2
    max_lines: int = 3
    told: float = 0.7
    revise: float = 0.5
    shown_run: Literal["own", "other"] = "own"
    turns: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in (("train_tasks", 1, 10**7), ("test_tasks", 1, 10**6), ("turns", 2, 64)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)} is outside {low}…{high}")
        if not 2 <= self.min_lines <= self.max_lines <= 4:  # there are names for four lines
            raise ValueError(
                f"min_lines={self.min_lines}, max_lines={self.max_lines}; write 2 ≤ min_lines ≤ max_lines ≤ 4"
            )
        if not 0 <= self.told <= 1:
            raise ValueError(f"told={self.told} is a probability, 0…1")
        if not 0 <= self.revise < 1:
            raise ValueError(f"revise={self.revise} is a probability, 0 up to below 1")
        # what other sources know of themselves as a class is a setting here
        object.__setattr__(self, "max_turns", self.turns)


@register("data", "reviews")
@dataclass(frozen=True)
class Reviews(WorldSettings):
    """The embedded review world: short changes of code with planted defects, and comments whose true worth is known.

    Args:
        train_pairs, test_pairs: preference pairs per split, each on a change of its own; no change is in both splits.
        annotator: who labels the pairs. Confident sentences count as affirmations, praise as closing offers.
    """

    true_reward: ClassVar[bool] = True
    smoke: ClassVar[dict[str, int]] = {"train_pairs": 2000, "test_pairs": 200}
    smoke_real: ClassVar[dict[str, int]] = {"train_pairs": 16, "test_pairs": 16}
    train_pairs: int = 16000
    test_pairs: int = 1000
    annotator: AnnotatorSettings = field(default_factory=AnnotatorSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("train_pairs", "test_pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; at least 1 pair is needed")


@dataclass(frozen=True)
class ClipSettings(WorldSettings):
    """Data whose replies are clips in a codec's codes. A pair is two ways to say the same, and which of them a
    simulated listener preferred.

    Args:
        train_pairs, test_pairs: pairs per split; what is said in one split is never said in the other.
        test_voice: share of the test prompts with a voice that was never in training, 0…1; a category of its own.
        good: share of clips without a defect, 0…1.
        codebooks: codes of each of the codec's four codebooks (envelope, pitch, energy × aperiodicity, residual), each
            8…64, the third a multiple of 4 from 16 on.
        temperature: noise of the listener, in gold points; 0 always takes the better side.
    """

    true_reward: ClassVar[bool] = True
    audio: ClassVar[bool] = True
    smoke_real: ClassVar[dict[str, int]] = {"train_pairs": 16, "test_pairs": 16}
    train_pairs: int = 4000
    test_pairs: int = 500
    test_voice: float = 0.25
    good: float = 0.25
    codebooks: tuple[int, ...] = (64, 64, 64, 64)
    temperature: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("train_pairs", "test_pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; at least 1 pair is needed")
        for name in ("test_voice", "good"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is a share, 0…1")
        sizes = self.codebooks
        if len(sizes) != 4 or not all(8 <= size <= 64 for size in sizes) or sizes[2] % 4 or sizes[2] < 16:
            raise ValueError(
                f"codebooks={list(sizes)}; write four numbers, each 8…64, the third a multiple of 4 from 16 on"
            )
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} is negative; 0 is a noiseless listener")


@register("data", "speech")
@dataclass(frozen=True)
class Speech(ClipSettings):
    """The embedded speech world: short made-up utterances as streams of a codec, whose true naturalness is known."""

    smoke: ClassVar[dict[str, int]] = {"train_pairs": 600, "test_pairs": 100}


@register("data", "espeak")
@dataclass(frozen=True)
class Espeak(ClipSettings):
    """English sentences that the program espeak-ng says, as streams of a codec; the truth is about prosody alone.

    Args:
        train_pairs, test_pairs: pairs per split, of 24 texts in training and 6 others held out.
    """

    phones: ClassVar[bool] = False
    smoke: ClassVar[dict[str, int]] = {"train_pairs": 300, "test_pairs": 100}
    train_pairs: int = 800
    test_pairs: int = 200


TOOL_KINDS = (
    "lookup", "chain_2", "chain_3", "long_chain", "sum", "difference", "compare", "redirected", "twice_redirected",
    "missing_entity", "missing_relation", "ambiguous", "conflicting", "flaky", "table", "retrieval", "several",
    "chain_4", "chain_5", "chain_6", "chain_7", "chain_8", "chain_9", "chain_10",
)  # fmt: skip
TOOL_ROLES = ("act", "answer", "plan", "split", "step", "note", "combine")


@dataclass(frozen=True)
class HabitSettings:
    """Mistakes in the demonstrations of the tool world: what a model starts with that has only imitated them.

    Args:
        wrong_relation: probability, at each search, of looking up another relation than is needed.
        take_redirect: probability, at each redirect, of taking the name where the entry lies for the value. Above ½ it
            is what most demonstrations do, so that greedy decoding makes the mistake too.
        stop_early: probability, after each step but the last, of answering with what was found.
        repeat_call: probability, at each call, of making it twice.
    """

    wrong_relation: float = 0.1
    take_redirect: float = 0.6
    stop_early: float = 0.1
    repeat_call: float = 0.1

    def __post_init__(self) -> None:
        for item in fields(self):
            if not 0 <= getattr(self, item.name) < 1:
                raise ValueError(f"{item.name}={getattr(self, item.name)} is a probability, 0 up to below 1")


@register("data", "tools")
@dataclass(frozen=True)
class Tools(WorldSettings):
    """The embedded tool world: questions over fresh bases of facts that only tools can read.

    A training row is a demonstration, with the mistakes of `habits`; an episode is a conversation with the tools.
    No name of a test task occurs in a training task.

    Args:
        kinds: kind of task → how often it is drawn, relative to the others. The kinds: lookup, chain_2 … chain_10,
            long_chain, sum, difference, compare, redirected, twice_redirected, missing_entity, missing_relation,
            ambiguous, conflicting, flaky, table, retrieval, several.
        test_kinds: kinds of the held-out tasks, each as often; null is those of `kinds`.
        roles: what the demonstrations teach → how often, relative to the others: act (a conversation with the tools),
            answer, plan, split, step, note, combine; see `environments/tools/roles.py`.
        train_tasks, test_tasks: tasks per split. A training task has one demonstration, in one role: a row, or in the
            roles step and note a row for each turn.
        entities, relations: in each task's base of facts.
        redirect: probability that the facts of an entity lie under another name.
        busy: probability that a call fails and has to be made again; the kind flaky has its own.
        habits: mistakes in the demonstrations of the role act; the other roles' have none.
        turns: most turns of an episode.
    """

    preferences: ClassVar[bool] = False
    true_reward: ClassVar[bool] = True
    smoke: ClassVar[dict[str, int]] = {"train_tasks": 2000, "test_tasks": 60}
    smoke_real: ClassVar[dict[str, int]] = {"train_tasks": 16, "test_tasks": 16}
    kinds: dict[str, float] = field(default_factory=lambda: {"lookup": 1.0, "chain_2": 2.0, "chain_3": 2.0})
    test_kinds: tuple[str, ...] | None = None
    roles: dict[str, float] = field(default_factory=lambda: {"act": 1.0})
    train_tasks: int = 24000
    test_tasks: int = 600
    entities: int = 10
    relations: int = 5
    redirect: float = 0.25
    busy: float = 0.0
    habits: HabitSettings = field(default_factory=HabitSettings)
    turns: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("kinds", TOOL_KINDS), ("test_kinds", TOOL_KINDS), ("roles", TOOL_ROLES)):
            unknown = [key for key in getattr(self, name) or () if key not in known]
            if unknown:
                hint = schema.did_you_mean(unknown[0], known)
                raise ValueError(f"{name}: {unknown[0]} is not one of {', '.join(known)}{hint}")
        for name in ("kinds", "roles"):
            weights = getattr(self, name)
            if min(weights.values(), default=0) < 0 or not any(weights.values()):
                raise ValueError(f"{name}={weights}; write weights, 0 or above, and one of them above 0")
        for name, low, high in (("train_tasks", 1, 10**7), ("test_tasks", 1, 10**6), ("turns", 2, 64)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)} is outside {low}…{high}")
        if not 6 <= self.entities <= 10:
            raise ValueError(f"entities={self.entities} is outside 6…10")
        if not 4 <= self.relations <= 6:
            raise ValueError(f"relations={self.relations} is outside 4…6")
        for name in ("redirect", "busy"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is a probability, 0 up to below 1")
        # what other sources know of themselves as a class is a setting here
        object.__setattr__(self, "max_turns", self.turns)


@dataclass(frozen=True)
class FileSettings(DataSettings):
    """Sources that are read from a file or a hub.

    Args:
        path: a local file, folder or glob (.jsonl, .json, .csv, .tsv, each also as .gz, .parquet); or a hub data set as
            `owner/name`, `owner/name:split` or `owner/name/folder:split` (split: train). A configuration is named like
            a folder.
        test_path: the held-out split; without it `test_fraction` of the prompts is held out by a hash of the prompt.
        test_fraction: share of prompts held out, in (0, 1).
        max_pairs: keep at most this many pairs per split, taken in file order; 0 keeps all.
        max_bad_rows: rows that cannot be read at all (broken JSON, missing field) before loading stops with an error.
            Such rows are errors; rows that are readable but unusable (identical replies, …) are counted and dropped.
        columns: the columns besides the text that rewards and graders get with a prompt (`Corpus.facts`), such as
            answer, tests, id, category; null takes all there are, [] none. With `streaming`, null takes none.
        streaming: keep the rows on disk (and `algorithm=sft` its tokens too), for data that do not fit in memory; a hub
            data set is read as it arrives and not stored, up to the row that fills `max_pairs`. The same pairs in the
            same order as without.
        shuffle_buffer: with `streaming`, rows in a buffer from which the next one is drawn at random; 0 keeps the order
            of the source. A row moves forward by less than the buffer, so a source that is sorted stays roughly sorted.
        shuffle_seed: of that draw.
    """

    smoke: ClassVar[dict[str, int]] = {"max_pairs": 2000}
    smoke_real: ClassVar[dict[str, int]] = {"max_pairs": 16}
    keyed_if_set: ClassVar[tuple[str, ...]] = ("shuffle_buffer", "shuffle_seed")
    fixed_columns: ClassVar[tuple[str, ...]] = ()
    """Columns that every row must have, where no setting names them."""
    path: str = ""
    test_path: str | None = None
    test_fraction: float = 0.1
    max_pairs: int = 0
    max_bad_rows: int = 0
    columns: tuple[str, ...] | None = None
    streaming: bool = False
    shuffle_buffer: int = 0
    shuffle_seed: int = 0

    @property
    def fact_columns(self) -> tuple[str, ...] | None:
        """The columns that become facts; None is all others than the text's. Facts are held in memory."""
        return () if self.columns is None and self.streaming else self.columns

    def text_columns(self) -> tuple[str, ...]:
        """The columns that hold the conversation; the others are facts about it."""
        return self.fixed_columns

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path is not set; write data.path=FILE (.jsonl, .csv, .parquet, …) or a hub data set id")
        if not 0 < self.test_fraction < 1:
            raise ValueError(f"test_fraction={self.test_fraction} is outside (0, 1)")
        for name in ("max_pairs", "max_bad_rows", "shuffle_buffer", "shuffle_seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is negative; write a count, 0 or more")
        if self.shuffle_buffer and not self.streaming:
            raise ValueError(f"shuffle_buffer={self.shuffle_buffer} is of a stream; add data.streaming=true")
        if self.shuffle_buffer and self.graded:
            raise ValueError(
                f"shuffle_buffer={self.shuffle_buffer}: rows that follow each other with the same prompt make a pair, "
                "so they cannot be shuffled; write data.shuffle_buffer=0"
            )


@register("data", "hh_rlhf")
@dataclass(frozen=True)
class HHRLHF(FileSettings):
    """Anthropic hh-rlhf (arXiv:2204.05862): `chosen` and `rejected` are whole transcripts with a shared history."""

    fixed_columns: ClassVar[tuple[str, ...]] = ("chosen", "rejected")


@register("data", "pairs")
@dataclass(frozen=True)
class Pairs(FileSettings):
    """Any JSONL, CSV, Parquet or hub preference data, with a column map.

    Args:
        prompt, chosen, rejected: the columns that hold them. Text or lists of {role, content} messages; `prompt=""`
            means both sides are whole conversations (TRL's implicit-prompt preference type): the prompt is everything
            before their last assistant turn.
        tools: the column of tool definitions, a list or its JSON, where the rows have one; "" reads none.
    """

    prompt: str = "prompt"
    chosen: str = "chosen"
    rejected: str = "rejected"
    tools: str = "tools"

    def text_columns(self) -> tuple[str, ...]:
        return (self.prompt, self.chosen, self.rejected, self.tools)


@register("data", "graded")
@dataclass(frozen=True)
class Graded(FileSettings):
    """Replies with grades, a reply per row: rows that follow each other with the same prompt make a pair.

    The reply with the higher grade on `rank_by` is the chosen one; pairs that tie there are dropped and counted.

    Args:
        prompt, response: the columns that hold them, as text. A prompt of several turns is a transcript, or has
            HelpSteer2's marks "<extra_id_1>Assistant" and "<extra_id_1>User" between the turns.
        attributes: the columns of grades.
        low, high: bounds of every grade.
        rank_by: the attribute that decides which reply is chosen.
    """

    graded: ClassVar[bool] = True
    prompt: str = "prompt"
    response: str = "response"
    attributes: tuple[str, ...] = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
    low: float = 0.0
    high: float = 4.0
    rank_by: str = "helpfulness"

    def text_columns(self) -> tuple[str, ...]:
        return (self.prompt, self.response, *self.attributes)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank_by not in self.attributes:
            raise ValueError(f"rank_by={self.rank_by} is not one of attributes: {', '.join(self.attributes)}")
        if self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")


PROMPT = "{prompt}"
"""Where a template of prompts has the question."""


@dataclass(frozen=True)
class AskedSettings(FileSettings):
    """Sources whose prompts are put to a policy and whose replies a verifier can check.

    Args:
        prompt_template: the text around the last user message of every prompt, which stands at "{prompt}":
            "{prompt}\\n\\nThink step by step and write the answer after ####." Part of the prompt, and so of the data.
        system: the system message of prompts that have none of their own; "" is none. A chat template renders it as
            one; without a template the prompt opens with a System turn.
        verifier: what the metric `correct` is measured with: `math`, `ifeval`, `json` or another verifier among the
            rewards, with the settings of the run's reward of that kind or else its defaults. null takes the verifier of
            the run's reward, or where there is none the answer key.
    """

    keyed_if_set: ClassVar[tuple[str, ...]] = (
        *FileSettings.keyed_if_set,
        *("prompt_template", "system", "verifier"),
    )
    prompt_template: str = PROMPT
    system: str = ""
    verifier: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if PROMPT not in self.prompt_template:
            raise ValueError(
                f'prompt_template={self.prompt_template!r} has no place for the question; write "{PROMPT}" where it '
                "belongs"
            )


@register("data", "gsm8k")
@dataclass(frozen=True)
class GSM8K(AskedSettings):
    """GSM8K (arXiv:2110.14168) and files of its form: `question`, and `answer`, a worked solution ending in "#### N".

    Args:
        annotations: calculator annotations in the solutions ("48+24 = <<48+24=72>>72"); `strip` leaves "48+24 = 72".
    """

    preferences: ClassVar[bool] = False
    answers: ClassVar[bool] = True
    annotations: Literal["keep", "strip"] = "strip"
    fixed_columns: ClassVar[tuple[str, ...]] = ("question", "answer")


@register("data", "sft")
@dataclass(frozen=True)
class Demonstrations(FileSettings):
    """Conversations to imitate. A row has messages, or a prompt and a completion, or text; its columns say which.

    Args:
        messages: the column of a whole conversation: {role, content} with the roles system, user, assistant and tool.
        prompt, completion: the columns of what was asked and of the reply; text or messages.
        text: the column of a transcript, or of plain text to imitate.
        tools: the column of tool definitions, a list or its JSON, where the rows have one; "" reads none.
    """

    preferences: ClassVar[bool] = False
    messages: str = "messages"
    prompt: str = "prompt"
    completion: str = "completion"
    text: str = "text"
    tools: str = "tools"

    def text_columns(self) -> tuple[str, ...]:
        return (self.messages, self.prompt, self.completion, self.text, self.tools)


@register("data", "prompts")
@dataclass(frozen=True)
class Prompts(AskedSettings):
    """Prompts alone, to sample replies to.

    Args:
        prompt: the column of what is asked: text, messages, or a list of user turns, of which the first is asked.
        tools: the column of tool definitions, a list or its JSON, where the rows have one; "" reads none.
    """

    preferences: ClassVar[bool] = False
    demonstrations: ClassVar[bool] = False
    prompt: str = "prompt"
    tools: str = "tools"


@register("data", "unpaired")
@dataclass(frozen=True)
class Unpaired(FileSettings):
    """Single replies that were liked or disliked, for `algorithm=kto`.

    Args:
        prompt, completion: the columns of what was asked and of the reply; text or messages.
        label: the column that is true where the reply was liked.
        tools: the column of tool definitions, a list or its JSON, where the rows have one; "" reads none.
    """

    preferences: ClassVar[bool] = False
    demonstrations: ClassVar[bool] = False
    unpaired: ClassVar[bool] = True
    prompt: str = "prompt"
    completion: str = "completion"
    label: str = "label"
    tools: str = "tools"

    def text_columns(self) -> tuple[str, ...]:
        return (self.prompt, self.completion, self.label, self.tools)


@register("data", "verifiable")
@dataclass(frozen=True)
class Verifiable(AskedSettings):
    """Prompts whose replies can be checked: against an answer, or by further columns such as tests.

    Args:
        prompt: the column of what is asked; text, with its spaces, or messages.
        answer: the column of the answer that a reply must reach; "" where rewards read other columns.
        solution: the column of a worked solution to imitate; "" where there is none.
        tools: the column of tool definitions, a list or its JSON, where the rows have one; "" reads none.
    """

    preferences: ClassVar[bool] = False
    prompt: str = "prompt"
    answer: str = "answer"
    solution: str = ""
    tools: str = "tools"

    def text_columns(self) -> tuple[str, ...]:
        return (self.prompt, self.solution, self.tools)

    def __post_init__(self) -> None:
        super().__post_init__()
        # What other sources know of themselves as a class depends on the columns here.
        object.__setattr__(self, "answers", bool(self.answer))
        object.__setattr__(self, "demonstrations", bool(self.solution))


@register("data", "mix")
@dataclass(frozen=True)
class Mix(DataSettings):
    """Several sources as one, in fixed proportions.

    Args:
        sources: name → the settings of a source (`kind`, `path`, …) and its `weight`. With weights, given to all or to
            none, a split takes as many rows as the proportions allow without any row twice; without, all rows.
        max_pairs: at most this many rows per split, in the same proportions; 0 is no limit.
        seed: draws which rows are taken and their order.
    """

    smoke: ClassVar[dict[str, int]] = {"max_pairs": 2000}
    smoke_real: ClassVar[dict[str, int]] = {"max_pairs": 16}
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    max_pairs: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError(
                "sources is not set; write data.sources.NAME.kind=KIND data.sources.NAME.path=FILE for each"
            )
        problems: list[str] = []
        built = {name: self._build(name, problems) for name in self.sources}
        for name, part in built.items():
            if getattr(part, "verifier", None):
                problems.append(
                    f"sources.{name}.verifier={part.verifier}: the sources of a mix are measured together, by the "
                    "verifier of the run's reward; leave it out"
                )
        weights = [source.get("weight") for source in self.sources.values() if isinstance(source, Mapping)]
        if any(weights) and not all(isinstance(weight, (int, float)) and weight > 0 for weight in weights):
            problems.append(f"sources: the weights are {weights}; give every source one above 0, or none of them")
        if problems:
            raise ConfigError(problems)
        parts = [part for part in built.values() if part is not None]
        object.__setattr__(self, "_parts", built)
        for flag in ("preferences", "answers", "demonstrations"):
            object.__setattr__(self, flag, all(getattr(part, flag) for part in parts))
        # Both replies of a pair are examples of their own to an algorithm that reads unpaired data.
        is_labelled = all(part.unpaired or part.preferences for part in parts)
        object.__setattr__(self, "unpaired", is_labelled and any(part.unpaired for part in parts))
        object.__setattr__(self, "drawn", any(part.drawn for part in parts))

    def _build(self, name: str, problems: list[str]) -> Any:
        where = f"sources.{name}"
        values = self.sources[name]
        if not isinstance(values, Mapping) or "kind" not in values:
            known = ", ".join(kind for kind in registry.kinds("data") if kind != "mix")
            problems.append(f"{where}.kind is not set; write data.{where}.kind=… with one of {known}")
            return None
        try:
            cls = registry.settings_class("data", values["kind"])
        except ConfigError as error:
            problems.extend(f"{where}: {line}" for line in error.problems)
            return None
        settings = {key: value for key, value in values.items() if key not in ("kind", "weight")}
        return schema.build(cls, settings, where, problems)

    def parts(self) -> dict[str, DataSettings]:
        return dict(self._parts)  # type: ignore[attr-defined]

    def of_run(self, seed: int) -> Self:
        sources = {}
        for name, part in self.parts().items():
            kept = {key: value for key, value in self.sources[name].items() if key in ("kind", "weight")}
            sources[name] = {**kept, **schema.plain(part.of_run(seed))}
        return replace(self, sources=sources)


@register("data", "environment")
@dataclass(frozen=True)
class ForeignEnvironment(Prompts):
    """An environment of one's own, or one written for another library, that answers the policy (docs/environments.md).

    Args:
        style: `lab` is an object with the methods of `rlhf_lab.Environment`; `trl` a class in the form of TRL's
            `environment_factory`; `openenv` a server of OpenEnv; `verifiers` an installed environment of verifiers 0.1.
        environment: FILE.py:NAME of the class or function that makes it; of `openenv` the server's address, of
            `verifiers` the environment's name.
        arguments: what it is made with, by name.
        path: file of tasks: `prompt`, and further columns that the environment gets when an episode begins. Not for
            `lab` and `verifiers`, which have tasks of their own.
        prompt: the column of what is asked: text, or messages.
        action, observation: of `openenv`: the field of an action that holds the reply, and of an observation that the
            policy reads.
        max_turns: most turns of the policy in an episode.
        timeout_s: of `verifiers`: longest wait for the environment.
        version: declared version of a server or an installed environment; change it when its answers change, so that
            stored results are not reused. The code in a file is known by itself.
    """

    max_turns: int = 8  # type: ignore[misc]  # depends on the settings here, on the class elsewhere
    style: Literal["lab", "trl", "openenv", "verifiers"] = "lab"
    environment: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    action: str = "message"
    observation: str = "message"
    timeout_s: float = 60.0
    version: str = ""

    @property
    def brings_tasks(self) -> bool:
        """Whether the environment has tasks of its own."""
        return self.style in ("lab", "verifiers")

    def __post_init__(self) -> None:
        is_file = self.style in ("lab", "trl")
        require(
            (bool(self.environment), "environment is not set; write data.environment=my_env.py:MyEnvironment"),
            (
                not is_file or not self.environment or names_object(self.environment),
                f"environment={self.environment} is not FILE.py:NAME, such as my_env.py:MyEnvironment",
            ),
            (
                not (self.brings_tasks and self.path),
                f"path={self.path} is not read with style={self.style}: the environment has tasks of its own",
            ),
            (self.max_turns >= 1, f"max_turns={self.max_turns} must be at least 1"),
            (self.timeout_s > 0, f"timeout_s={self.timeout_s} must be above 0"),
            (
                self.verifier is None,
                f"verifier={self.verifier} is not read: what the environment gives is the reward of an episode",
            ),
            (
                not self.brings_tasks or (self.prompt_template == "{prompt}" and not self.system),
                f"prompt_template and system are not read with style={self.style}, whose tasks are its own",
            ),
        )
        if not self.brings_tasks:
            super().__post_init__()
