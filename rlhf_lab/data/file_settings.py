"""Settings of data from files and the hub, and of environments, whose tasks may come from files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.config import registry
from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import BySize, Finite, Ge, Gt, Le, NotEmpty
from rlhf_lab.core.user_code import files_behind, names_object
from rlhf_lab.data.settings import DataSettings

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@dataclass(frozen=True)
class FileSettings(DataSettings):
    """Settings of sources that are read from a file or a hub.

    Args:
        path: local file, directory or glob (.jsonl, .json, .csv, .tsv, each also as .gz, .parquet), or a hub data set
            as `owner/name`, `owner/name:split` or `owner/name/DIR:split` (default split: train). A configuration is
            named like a directory.
        test_path: source of the test split; null holds out `test_fraction` of the prompts by a hash of the prompt.
        test_fraction: fraction of prompts to hold out, in (0, 1]. With 1 all rows are held out: the data serve as a
            benchmark, and no model can train on them.
        max_pairs: maximum number of pairs per split, taken in file order; 0 keeps all.
        max_bad_rows: maximum number of unreadable rows (broken JSON, missing field) before loading stops with an error.
            Rows that are readable but unusable (identical responses, …) are counted and dropped instead.
        columns: metadata columns, such as answer, tests, id, category. Rewards and graders receive them with the
            prompt (`Corpus.metadata`). null takes all columns except those of the text, [] none. With `streaming`,
            null takes none.
        streaming: keep the rows on disk (and with `algorithm=sft` also the tokens), for data that do not fit in memory.
            A hub data set is read as it arrives and not stored, up to the row that reaches `max_pairs`. The pairs and
            their order are the same as without.
        shuffle_buffer: with `streaming`, number of rows in a buffer from which the next row is sampled; 0 keeps the
            order of the source. A row moves forward by less than the buffer size, so a sorted source stays roughly
            sorted.
        shuffle_seed: seed of the shuffle buffer.
    """

    # text of people is verbose by the rules of `evaluations/verbosity.py`
    provides: ClassVar[Capability] = DataSettings.provides | Capability.VERBOSITY
    # fewer rows at `size=smoke`
    by_size = BySize(smoke={"max_pairs": 2000}, smoke_real={"max_pairs": 16})
    # defaults are left out of a run's key, so that runs from before these settings keep theirs
    keyed_if_set: ClassVar[tuple[str, ...]] = ("shuffle_buffer", "shuffle_seed")
    fixed_columns: ClassVar[tuple[str, ...]] = ()
    """Columns that every row must have, if no setting names them."""
    column_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that name a column of the conversation."""
    path: str = ""
    test_path: str | None = None
    test_fraction: Annotated[float, Gt(0), Le(1)] = 0.1
    max_pairs: Annotated[int, Ge(0, hint="0 is all")] = 0
    max_bad_rows: Annotated[int, Ge(0)] = 0
    columns: tuple[str, ...] | None = None
    streaming: bool = False
    shuffle_buffer: Annotated[int, Ge(0, hint="0 keeps the order of the source")] = 0
    shuffle_seed: Annotated[int, Ge(0)] = 0

    @property
    def holds_out_all(self) -> bool:
        """True if every row is held out, and none is left to train on."""
        return self.test_path is None and self.test_fraction == 1

    def contradictions(self, config: Config) -> list[str]:
        # an evaluation may hold out every row
        if not config.algorithm.outputs.model or not self.holds_out_all:
            return []
        algorithm = registry.kind_of("algorithm", config.algorithm)
        data = registry.kind_of("data", config.data)
        return [
            f"algorithm={algorithm} trains a model, but data.test_fraction=1 holds out every row of data={data}; name "
            "a trained model for that role (needs.policy=DIR or a hub id), train on other data, or write "
            "data.test_fraction=0.1 to hold out one row in ten"
        ]

    @property
    def fact_columns(self) -> tuple[str, ...] | None:
        """Columns that become metadata; None means all except those of the text. Metadata are kept in memory."""
        # streamed data may not fit in memory, and metadata would stay there
        return () if self.columns is None and self.streaming else self.columns

    def text_columns(self) -> tuple[str, ...]:
        """Return the columns of the conversation; the other columns are metadata."""
        return (*self.fixed_columns, *(getattr(self, setting) for setting in self.column_settings))

    @property
    def reads_file(self) -> bool:
        """True if the rows come from `path`."""
        return True

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                bool(self.path) or not self.reads_file,
                "path is not set; write data.path=FILE (.jsonl, .csv, .parquet, …) or a hub data set id",
            ),
            (
                self.streaming or not self.shuffle_buffer,
                f"shuffle_buffer={self.shuffle_buffer} needs a streamed source; add data.streaming=true",
            ),
            (
                not (self.shuffle_buffer and Capability.GRADES in self.provides),
                f"shuffle_buffer={self.shuffle_buffer}: consecutive rows with the same prompt form a pair, so they "
                "cannot be shuffled; write data.shuffle_buffer=0",
            ),
        )


@register("data", "hh_rlhf")
@dataclass(frozen=True)
class HHRLHF(FileSettings):
    """Anthropic hh-rlhf (arXiv:2204.05862): `chosen` and `rejected` are full transcripts with the same history."""

    fixed_columns: ClassVar[tuple[str, ...]] = ("chosen", "rejected")


@register("data", "pairs")
@dataclass(frozen=True)
class Pairs(FileSettings):
    """Preference pairs from any JSONL, CSV, Parquet or hub source, with a column map.

    Args:
        prompt: column of the prompt: text or a list of {role, content} messages. With "", both sides are full
            conversations (TRL's implicit-prompt preference type), and the prompt is everything before their last
            assistant turn.
        chosen: column of the chosen response: text or messages.
        rejected: column of the rejected response: text or messages.
        tools: column of tool definitions, a list or its JSON, if the rows have one; "" reads none.
    """

    column_settings: ClassVar[tuple[str, ...]] = ("prompt", "chosen", "rejected", "tools")
    prompt: str = "prompt"
    chosen: str = "chosen"
    rejected: str = "rejected"
    tools: str = "tools"

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.chosen != self.rejected,
                f"chosen and rejected are the same column, {self.chosen!r}; name one column for each side",
            ),
        )


@register("data", "graded")
@dataclass(frozen=True)
class GradedData(FileSettings):
    """Responses with grades, one response per row: consecutive rows with the same prompt form a pair.

    The response with the higher grade on `rank_by` is the chosen one. Pairs with equal grades on it are dropped and
    counted.

    Args:
        prompt: column of the prompt, as text. A prompt of several turns is a transcript, or has HelpSteer2's marks
            "<extra_id_1>Assistant" and "<extra_id_1>User" between the turns.
        response: column of the response, as text.
        attributes: columns of grades.
        low: lower bound of all grades.
        high: upper bound of all grades.
        rank_by: attribute that decides which response is the chosen one.
    """

    provides: ClassVar[Capability] = FileSettings.provides | Capability.GRADES
    prompt: str = "prompt"
    response: str = "response"
    attributes: tuple[str, ...] = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
    low: Annotated[float, Finite()] = 0.0
    high: Annotated[float, Finite()] = 4.0
    rank_by: str = "helpfulness"

    def text_columns(self) -> tuple[str, ...]:
        return (self.prompt, self.response, *self.attributes)

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.rank_by in self.attributes,
                f"rank_by={self.rank_by} is not one of attributes: {', '.join(self.attributes)}",
            ),
            (self.low < self.high, f"low={self.low} must be below high={self.high}"),
        )


PROMPT = "{prompt}"
"""Placeholder for the question in a template of prompts."""


@dataclass(frozen=True)
class PromptFileSettings(FileSettings):
    """Settings of sources whose prompts are sent to a policy and whose responses a verifier can check.

    Args:
        prompt_template: text around the last user message of every prompt, with "{prompt}" for the message:
            "{prompt}\\n\\nThink step by step and write the answer after ####." It is part of the prompt, and thus of
            the data.
        system: system message of prompts that have none of their own; "" is none. A chat template renders it as a
            system message; without a template the prompt starts with a System turn.
        verifier: verifier of the metric `correct`: `math`, `ifeval`, `json` or another verifier among the rewards. It
            uses the settings of the run's reward of that kind, or else the defaults. null takes the verifier of the
            run's reward, or the answer key if there is none.
    """

    keyed_if_set: ClassVar[tuple[str, ...]] = ("prompt_template", "system", "verifier")
    prompt_template: str = PROMPT
    system: str = ""
    verifier: str | None = None

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                PROMPT in self.prompt_template,
                f"prompt_template={self.prompt_template!r} has no placeholder for the question; write "
                f'"{PROMPT}" where the question belongs',
            ),
        )


@register("data", "gsm8k")
@dataclass(frozen=True)
class GSM8K(PromptFileSettings):
    """GSM8K (arXiv:2110.14168) and files of its form: `question`, and `answer`, a worked solution ending in "#### N".

    Args:
        annotations: treatment of calculator annotations in the solutions. `keep` leaves "48+24 = <<48+24=72>>72",
            `strip` changes it to "48+24 = 72".
    """

    provides: ClassVar[Capability] = Capability.TEXT | Capability.DEMONSTRATIONS | Capability.ANSWERS
    annotations: Literal["keep", "strip"] = "strip"
    fixed_columns: ClassVar[tuple[str, ...]] = ("question", "answer")


@register("data", "sft")
@dataclass(frozen=True)
class Demonstrations(FileSettings):
    """Conversations to imitate. A row has messages, or a prompt and a completion, or text, as its columns show.

    Args:
        messages: column of a full conversation: {role, content} with the roles system, user, assistant and tool.
        prompt: column of the prompt: text or messages.
        completion: column of the response: text or messages.
        text: column of a transcript, or of plain text to imitate.
        tools: column of tool definitions, a list or its JSON, if the rows have one; "" reads none.
    """

    provides: ClassVar[Capability] = Capability.TEXT | Capability.DEMONSTRATIONS | Capability.VERBOSITY
    column_settings: ClassVar[tuple[str, ...]] = ("messages", "prompt", "completion", "text", "tools")
    messages: str = "messages"
    prompt: str = "prompt"
    completion: str = "completion"
    text: str = "text"
    tools: str = "tools"


@register("data", "prompts")
@dataclass(frozen=True)
class PromptsData(PromptFileSettings):
    """Prompts without responses, to sample responses to.

    Args:
        prompt: column of the prompt: text, messages, or a list of user turns, of which the first is used.
        tools: column of tool definitions, a list or its JSON, if the rows have one; "" reads none.
    """

    provides: ClassVar[Capability] = Capability.TEXT | Capability.VERBOSITY
    prompt: str = "prompt"
    tools: str = "tools"


@register("data", "unpaired")
@dataclass(frozen=True)
class Unpaired(FileSettings):
    """Single responses that were liked or disliked, for `algorithm=kto`.

    Args:
        prompt: column of the prompt: text or messages.
        completion: column of the response: text or messages.
        label: column that is true if the response was liked.
        tools: column of tool definitions, a list or its JSON, if the rows have one; "" reads none.
    """

    # neither pairs nor demonstrations: a disliked response must not be imitated
    provides: ClassVar[Capability] = Capability.TEXT | Capability.UNPAIRED | Capability.VERBOSITY
    column_settings: ClassVar[tuple[str, ...]] = ("prompt", "completion", "label", "tools")
    prompt: str = "prompt"
    completion: str = "completion"
    label: str = "label"
    tools: str = "tools"


@register("data", "verifiable")
@dataclass(frozen=True)
class Verifiable(PromptFileSettings):
    """Prompts whose responses can be checked: against an answer, or by metadata columns such as tests.

    Args:
        prompt: column of the prompt: text, with its spaces, a transcript, or messages.
        answer: column of the correct answer; "" if rewards read other columns.
        solution: column of a worked solution to imitate; "" if there is none.
        tools: column of tool definitions, a list or its JSON, if the rows have one; "" reads none.
    """

    provides: ClassVar[Capability] = Capability.TEXT
    column_settings: ClassVar[tuple[str, ...]] = ("prompt", "solution", "tools")
    prompt: str = "prompt"
    answer: str = "answer"
    solution: str = ""
    tools: str = "tools"

    @property
    def capabilities(self) -> Capability:
        # the columns of the file decide what the data can be used for
        answers = Capability.ANSWERS if self.answer else Capability(0)
        demonstrations = Capability.DEMONSTRATIONS if self.solution else Capability(0)
        return super().capabilities | answers | demonstrations


@register("data", "environment")
@dataclass(frozen=True)
class ForeignEnvironment(PromptsData):
    """User-defined environment, or one written for another library, that answers the policy (docs/environments.md).

    Args:
        style: kind of environment. `lab`: an object with the methods of `rlhf_lab.Environment`. `trl`: a class in the
            form of TRL's `environment_factory`. `openenv`: a server of OpenEnv. `verifiers`: an installed environment
            of verifiers 0.1.
        environment: FILE.py:NAME of the class or function that creates it; for `openenv` the address of the server,
            for `verifiers` the name of the environment.
        arguments: keyword arguments for its creation.
        path: file of tasks with the column `prompt`. Other columns are passed to the environment when an episode
            starts. Not used by `lab` and `verifiers`, which have their own tasks.
        prompt: column of the prompt: text or messages.
        action: field of an action that contains the response; only for `openenv`.
        observation: field of an observation that the policy reads; only for `openenv`.
        max_turns: maximum number of turns of the policy in an episode.
        timeout_s: maximum time to wait for the environment, in seconds; only for `verifiers`.
        version: declared version of a server or an installed environment. Change it when the environment's answers
            change, so that stored results are not reused. Changes of code in a file are detected automatically.
    """

    max_turns: Annotated[int, Ge(1)] = 8  # type: ignore[misc]  # depends on the settings here, on the class elsewhere
    style: Literal["lab", "trl", "openenv", "verifiers"] = "lab"
    environment: Annotated[str, NotEmpty(hint="write data.environment=my_env.py:MyEnvironment")] = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    action: str = "message"
    observation: str = "message"
    timeout_s: Annotated[float, Gt(0)] = 60.0
    version: str = ""

    @property
    def brings_tasks(self) -> bool:
        """True if the environment has its own tasks."""
        return self.style in ("lab", "verifiers")

    @property
    def reads_file(self) -> bool:
        return not self.brings_tasks

    def rules(self) -> tuple[Rule, ...]:
        is_file = self.style in ("lab", "trl")
        return (
            *super().rules(),
            (
                not is_file or not self.environment or names_object(self.environment),
                f"environment={self.environment} is not of the form FILE.py:NAME, such as my_env.py:MyEnvironment",
            ),
            (
                not (self.brings_tasks and self.path),
                f"path={self.path} is not used with style={self.style}, because the environment has its own tasks; "
                "remove it",
            ),
            (
                self.verifier is None,
                f"verifier={self.verifier} is not used, because the environment returns the reward of an episode; "
                "remove it",
            ),
            (
                not self.brings_tasks or (self.prompt_template == PROMPT and not self.system),
                f"prompt_template and system are not used with style={self.style}, because the environment has its own "
                "tasks; remove them",
            ),
        )


def code_files(config: Config) -> list[Path]:
    """Return the source files of the user's own environment that the stage runs."""
    data = config.data
    return files_behind(data.environment) if isinstance(data, ForeignEnvironment) else []
