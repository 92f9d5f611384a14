"""Settings of who answers requests (`judge=…`). Imports no torch and no SDK."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from rlhf_lab.config import registry
from rlhf_lab.config.registry import register
from rlhf_lab.config.section import Section
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.packs import load
from rlhf_lab.core.ranges import Ge, Gt, Le, NotEmpty
from rlhf_lab.models.model_files import model_identity
from rlhf_lab.packs.judging.judges.rubric import content_digest

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

BY_JUDGE = "rlhf_lab.packs.judging.rewards.gold:by_judge"
"""The data of a run with the judge as their gold. Text: it imports torch."""

VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


@dataclass(frozen=True)
class JudgeSettings(Section):
    """Common to everyone who answers.

    Class attributes:
        deciding: the settings that decide the answers, and so belong to the identity of every result; the others say
            how fast, how often and at what cost is asked.
        requires: capabilities that the data must provide.
        reads_truth: whether it answers from the truth of an embedded world.
        library: optional library that it needs, a key of `core.errors.OPTIONAL`.

    Args:
        version: declared version of the model; change it when the model behind the same name changes, so that stored
            answers and results are not reused.
    """

    inherited: ClassVar[bool] = True
    gold_role: ClassVar[str] = "judge"
    deciding: ClassVar[tuple[str, ...]] = ("version",)
    requires: ClassVar[Requirements] = ()
    reads_truth: ClassVar[bool] = False
    library: ClassVar[str] = ""
    version: str = ""

    @property
    def is_greedy(self) -> bool:
        """Whether the same question always gets the same answer, whatever `Request.draw` is."""
        return getattr(self, "temperature", None) == 0

    def identity(self) -> dict[str, Any]:
        """The settings that decide the answers."""
        values = asdict(self)
        return {name: values[name] for name in self.deciding}

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        return [("judge", self)] if is_asked(config) else []

    def leaves_out(self, role: str, config: Config) -> bool:
        return role == self.gold_role and bool(gold_rubric(config))  # `needs.judge` is then a rubric, not a model

    def key_material(self, config: Config) -> dict[str, Any]:
        """Who is asked; how fast and at what cost decides nothing."""
        material: dict[str, Any] = {}
        if rubric := gold_rubric(config):
            material["gold"] = {"rubric": content_digest(rubric)}
        if is_asked(config):
            material["judge"] = {"kind": registry.kind_of("judge", self), **self.identity()}
        return material

    def digests(self, config: Config) -> dict[str, str]:
        return {setting: content_digest(file) for setting, file in rubric_files(config).items()}

    def gold(self, corpus: Any, run: Any) -> Any:
        return load(BY_JUDGE)(corpus, run, gold_rubric(run.config))

    def definitions(self, config: Config) -> list[tuple[str, str]]:
        module, _, name = BY_JUDGE.partition(":")
        return [(module, name)] if gold_rubric(config) else []

    def contradictions(self, config: Config) -> list[str]:
        if not (gold_rubric(config) and reward_asks(config)):
            return []
        return [
            "needs.judge: reward=judge asks the judge that is there to check it; name a reward model for one of them: "
            "needs.gold=FOLDER, or reward=bt"
        ]


def is_asked(config: Config) -> bool:
    """Return True if the stage asks the judge: by itself, through a term of its reward, or for gold."""
    return config.algorithm.asks_judge or reward_asks(config) or bool(gold_rubric(config))


def reward_asks(config: Config) -> bool:
    """Return True if a term of the stage's reward asks the judge."""
    return "reward" in config.algorithm.uses and any(term.asks_judge for term in config.reward.terms.values())


def gold_rubric(config: Config) -> str:
    """The rubric on which the judge grades responses for gold (`needs.judge`); empty where it does not."""
    return (config.needs.get("judge") or "") if config.algorithm.measures_gold else ""


def rubric_files(config: Config) -> dict[str, str]:
    """Dotted setting → the rubric's file that it names, of everything in a stage that asks the judge."""
    asking = {"algorithm": config.algorithm} if config.algorithm.asks_judge else {}
    if "reward" in config.algorithm.uses:
        asking |= {f"reward.terms.{name}": term for name, term in config.reward.terms.items() if term.asks_judge}
    files = {}
    for where, settings in asking.items():
        # Grading without a rubric of one's own is on the shipped one; comparing without one is without criteria.
        grades = getattr(settings, "mode", "grade") == "grade"
        if hasattr(settings, "rubric") and (settings.rubric or grades):
            files[f"{where}.rubric"] = settings.rubric
    return files | ({"needs.judge": gold_rubric(config)} if gold_rubric(config) else {})


@register("judge", "simulated")
@dataclass(frozen=True)
class Simulated(JudgeSettings):
    """A judge who knows the embedded world (`data=mini_hh`), with biases and noise to order. Sends nothing.

    Of two replies it prefers the one whose appeal is higher: what it believes each to be worth, in points of the true
    reward, plus its biases and its noise. Single replies are graded as `data.grader` says.

    It also writes, as `teacher.py` beside this file says: replies, critiques under named principles, revisions that put
    right what the critique named, and prompts of the world.

    Args:
        believes: `gold` sees the true reward; `annotator` what the world's annotator sees, with that one's biases.
        noise: standard deviation of the error of a comparison, gold points; fixed for a question and its order.
        position_bias: gold points added to the reply that is shown first.
        length_bias: gold points per 10 words.
        self_preference: gold points added to replies of `author`.
        author: name of the policy that the judge favours.
        tie_margin: a difference of appeal below this is called a tie, gold points.
        unusable: share of answers, 0…1, that are refused, cut off or unreadable, in equal parts.
        skill: latent quality, 0…1, of the replies that it writes; candidates of the corpus are uniform in it.
        misses: P(a critique does not name a principle that the reply violates).
        false_alarms: P(it names one that the reply does not violate).
        repairs: P(a fault of a principle that the critique named is put right).
        copies: share of its new prompts that are an example it was shown.
        seed: of the noise, and of what it writes.
    """

    deciding: ClassVar[tuple[str, ...]] = (
        *("version", "believes", "noise", "position_bias", "length_bias", "self_preference", "author", "tie_margin"),
        *("unusable", "skill", "misses", "false_alarms", "repairs", "copies", "seed"),
    )
    requires: ClassVar[Requirements] = (Capability.TRUE_REWARD,)
    reads_truth: ClassVar[bool] = True
    believes: Literal["gold", "annotator"] = "gold"
    noise: Annotated[float, Ge(0)] = 0.0
    position_bias: float = 0.0
    length_bias: float = 0.0
    self_preference: float = 0.0
    author: str = ""
    tie_margin: Annotated[float, Ge(0)] = 0.0
    unusable: Annotated[float, Ge(0), Le(1)] = 0.0
    skill: Annotated[float, Ge(0), Le(1)] = 0.5
    misses: Annotated[float, Ge(0), Le(1)] = 0.2
    false_alarms: Annotated[float, Ge(0), Le(1)] = 0.05
    repairs: Annotated[float, Ge(0), Le(1)] = 0.8
    copies: Annotated[float, Ge(0), Le(1)] = 0.1
    seed: int = 0

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                not self.self_preference or bool(self.author),
                f"self_preference={self.self_preference} favours no one; name the policy in author",
            ),
        )


@dataclass(frozen=True)
class Service(JudgeSettings):
    """A model behind a service: what every request to it has in common.

    Args:
        model: name of the model there; it has to be written where the service's file has none.
        base_url: of the service; empty is the vendor's own address.
        api_key_env: environment variable that holds the key; empty is the vendor's usual one, and none for a server of
            one's own. The key itself is never stored or shown.
        parallel: requests under way at once.
        requests_per_minute, tokens_per_minute: most of them; 0 is no limit.
        retries: further attempts after one that failed for a reason that may pass (429, 5xx, no connection), as late as
            the service asks for.
        request_timeout_s: an attempt that takes longer has failed.
        batches: send many requests as batches, at the price of batches, answered within a day.
        batch_requests: most requests of a batch.
        poll_s: seconds between two looks at whether a batch is done.
        budget_usd: most that one run, or one command, may spend, over all its restarts; null is no limit. Every request
            reserves the most that it can cost before it is sent.
        input_usd, output_usd: price of a million tokens; null takes that of the price table
            (`rlhf_lab/packs/judging/judges/prices.toml`). A service without a known price needs both.
        store: file of answers, ledger and batches; empty is judges.sqlite in `outputs`, which all runs there share.
    """

    deciding: ClassVar[tuple[str, ...]] = ("version", "model", "base_url")
    default_key_env: ClassVar[str] = ""
    default_url: ClassVar[str] = ""
    model: str = ""
    base_url: str = ""
    api_key_env: str = ""
    parallel: Annotated[int, Ge(1)] = 8
    requests_per_minute: Annotated[int, Ge(0, hint="0 is no limit")] = 0
    tokens_per_minute: Annotated[int, Ge(0, hint="0 is no limit")] = 0
    retries: Annotated[int, Ge(0)] = 4
    request_timeout_s: Annotated[float, Gt(0)] = 120.0
    batches: bool = False
    batch_requests: Annotated[int, Ge(1)] = 1000
    poll_s: Annotated[float, Gt(0)] = 30.0
    budget_usd: Annotated[float, Ge(0)] | None = None
    input_usd: Annotated[float, Ge(0)] | None = None
    output_usd: Annotated[float, Ge(0)] | None = None
    store: str = ""

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                not self.base_url or urlsplit(self.base_url).scheme in ("http", "https"),
                "base_url is not an http address; write one such as http://127.0.0.1:8000/v1",
            ),
            (
                not _carries_secret(self.base_url),
                "base_url has a name, a password or a query in it, which would be stored; name the variable that holds "
                "the key in api_key_env",
            ),
            (
                # many keys would do as a name in small letters, and a name is shown where its variable is not set
                not self.api_key_env or bool(VARIABLE.fullmatch(self.api_key_env)),
                "api_key_env is no name of an environment variable in capitals, such as MY_KEY; write the variable's "
                "name, never the key itself",
            ),
            (
                (self.input_usd is None) == (self.output_usd is None),
                f"input_usd={self.input_usd}, output_usd={self.output_usd}: write both or neither",
            ),
        )


def _carries_secret(url: str) -> bool:
    parts = urlsplit(url)
    return "@" in parts.netloc or bool(parts.query)


@register("judge", "anthropic")
@dataclass(frozen=True)
class Anthropic(Service):
    """Anthropic's API by its own SDK (`pip install 'rlhf_lab[judge]'`), with prompt caching and structured output."""

    library: ClassVar[str] = "anthropic"
    default_key_env: ClassVar[str] = "ANTHROPIC_API_KEY"
    default_url: ClassVar[str] = "https://api.anthropic.com"


@register("judge", "openai_compatible")
@dataclass(frozen=True)
class OpenAICompatible(Service):
    """Any service that answers like OpenAI's chat completions: OpenAI, vLLM, llama.cpp, Ollama (by OpenAI's SDK).

    Args:
        structured: how an answer's form is asked for: `json_schema`; `json_object`, where the service knows no schemas;
            `none` leaves it to the instructions.
        temperature: of sampling; null sends none, for models that take none.
    """

    deciding: ClassVar[tuple[str, ...]] = (*Service.deciding, "structured", "temperature")
    library: ClassVar[str] = "openai"
    default_key_env: ClassVar[str] = "OPENAI_API_KEY"
    default_url: ClassVar[str] = "https://api.openai.com/v1"
    structured: Literal["json_schema", "json_object", "none"] = "json_schema"
    temperature: float | None = 0.0


@register("judge", "local")
@dataclass(frozen=True)
class LocalModel(JudgeSettings):
    """A model on this machine, sampled by the lab's own sampler. Costs nothing.

    Args:
        path: folder or hub id of a causal language model with a chat template, or of one that the lab trained.
        temperature: of sampling; 0 is greedy.
        max_prompt_tokens: longer questions are cut on the left, and counted.
        batch_rows: questions that are answered at once.
    """

    deciding: ClassVar[tuple[str, ...]] = ("version", "path", "temperature", "max_prompt_tokens")
    path: Annotated[str, NotEmpty(hint="write the folder or hub id of a model, judge.path=…")] = ""
    temperature: Annotated[float, Ge(0, hint="0 is greedy")] = 0.0
    max_prompt_tokens: Annotated[int, Ge(1)] = 2048
    batch_rows: Annotated[int, Ge(1)] = 32

    def key_material(self, config: Config) -> dict[str, Any]:
        material = super().key_material(config)
        if "judge" in material:
            material["judge"]["content"] = model_identity(self.path)
        return material

    def local_models(self, config: Config) -> dict[str, str]:
        return {"judge": self.path} if is_asked(config) else {}
