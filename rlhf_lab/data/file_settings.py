"""Settings of data from files and the hub: pairs, grades, demonstrations, prompts, problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config import registry
from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Finite, Ge, Gt, Le
from rlhf_lab.data.settings import DataSettings

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@dataclass(frozen=True)
class FileSettings(DataSettings):
    """Sources that are read from a file or a hub.

    Args:
        path: a local file, folder or glob (.jsonl, .json, .csv, .tsv, each also as .gz, .parquet); or a hub data set as
            `owner/name`, `owner/name:split` or `owner/name/folder:split` (split: train). A configuration is named like
            a folder.
        test_path: the held-out split; without it `test_fraction` of the prompts is held out by a hash of the prompt.
        test_fraction: fraction of prompts held out, in (0, 1]. 1 holds out every row: a benchmark is measured whole,
            and nothing can be trained on it.
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
        if not config.algorithm.makes_model or not self.holds_out_all:
            return []
        algorithm, data = (registry.kind_of(group, getattr(config, group)) for group in ("algorithm", "data"))
        return [
            f"algorithm={algorithm} trains, and data.test_fraction=1 holds out every row of data={data}; name a "
            "trained model for that role (needs.policy=FOLDER or a hub id), train on other data, or write "
            "data.test_fraction=0.1 to train on nine rows in ten"
        ]

    @property
    def fact_columns(self) -> tuple[str, ...] | None:
        """The columns that become facts; None is all others than the text's. Facts are held in memory."""
        return () if self.columns is None and self.streaming else self.columns

    def text_columns(self) -> tuple[str, ...]:
        """The columns that hold the conversation; the others are facts about it."""
        return self.fixed_columns

    @property
    def reads_file(self) -> bool:
        """Whether the rows come from `path`."""
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
                f"shuffle_buffer={self.shuffle_buffer} is of a stream; add data.streaming=true",
            ),
            (
                not (self.shuffle_buffer and Capability.GRADES in self.provides),
                f"shuffle_buffer={self.shuffle_buffer}: rows that follow each other with the same prompt make a pair, "
                "so they cannot be shuffled; write data.shuffle_buffer=0",
            ),
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

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                PROMPT in self.prompt_template,
                f'prompt_template={self.prompt_template!r} has no place for the question; write "{PROMPT}" where it '
                "belongs",
            ),
        )


@register("data", "gsm8k")
@dataclass(frozen=True)
class GSM8K(AskedSettings):
    """GSM8K (arXiv:2110.14168) and files of its form: `question`, and `answer`, a worked solution ending in "#### N".

    Args:
        annotations: calculator annotations in the solutions ("48+24 = <<48+24=72>>72"); `strip` leaves "48+24 = 72".
    """

    provides: ClassVar[Capability] = Capability.TEXT | Capability.DEMONSTRATIONS | Capability.ANSWERS
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

    provides: ClassVar[Capability] = Capability.TEXT | Capability.DEMONSTRATIONS
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

    provides: ClassVar[Capability] = Capability.TEXT
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

    provides: ClassVar[Capability] = Capability.TEXT | Capability.UNPAIRED
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

    provides: ClassVar[Capability] = Capability.TEXT
    prompt: str = "prompt"
    answer: str = "answer"
    solution: str = ""
    tools: str = "tools"

    @property
    def capabilities(self) -> Capability:
        answers = Capability.ANSWERS if self.answer else Capability(0)
        demonstrations = Capability.DEMONSTRATIONS if self.solution else Capability(0)
        return super().capabilities | answers | demonstrations

    def text_columns(self) -> tuple[str, ...]:
        return (self.prompt, self.solution, self.tools)
