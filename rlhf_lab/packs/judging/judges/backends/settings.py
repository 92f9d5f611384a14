"""Settings of the backends that answer requests (`judge=…`). Imports no torch and no SDK."""

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
from rlhf_lab.core.ranges import Ge, Gt, Le, NotEmpty
from rlhf_lab.models.model_files import model_identity
from rlhf_lab.monitoring.settings import is_audited
from rlhf_lab.packs.judging.judges.rubric import content_digest

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Accepted names of environment variables."""


@dataclass(frozen=True)
class JudgeSettings(Section):
    """Settings common to all backends.

    Class attributes:
        deciding: settings that determine the answers and so belong to the identity of every result. The other settings
            determine speed, retries and cost.
        requires: capabilities that the data must provide.
        reads_truth: True if the backend answers from the truth of an embedded world.
        library: optional library that the backend needs, a key of `core.errors.OPTIONAL`.

    Args:
        version: declared version of the model. Change it when the model behind the same name changes, so that stored
            answers and results are not reused.
    """

    inherited: ClassVar[bool] = True
    deciding: ClassVar[tuple[str, ...]] = ("version",)
    requires: ClassVar[Requirements] = ()
    reads_truth: ClassVar[bool] = False
    library: ClassVar[str] = ""
    version: str = ""

    @property
    def is_greedy(self) -> bool:
        """True if the same question always gets the same answer, whatever `CompletionRequest.draw` is."""
        return getattr(self, "temperature", None) == 0

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the answers."""
        values = asdict(self)
        return {name: values[name] for name in self.deciding}

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        return [("judge", self)] if is_requested(config) else []

    def leaves_out(self, role: str, config: Config) -> bool:
        return role == "judge" and bool(gold_rubric(config))  # `needs.judge` is then a rubric, not a model

    def key_material(self, config: Config) -> dict[str, Any]:
        """Return the settings that enter the run's key: those that determine answers, but not speed or cost."""
        material: dict[str, Any] = {}
        if rubric := gold_rubric(config):
            material["gold"] = {"rubric": content_digest(rubric)}
        if is_requested(config):
            material["judge"] = {"kind": registry.kind_of("judge", self), **self.identity()}
        return material

    def digests(self, config: Config) -> dict[str, str]:
        return {setting: content_digest(file) for setting, file in rubric_files(config).items()}

    def contradictions(self, config: Config) -> list[str]:
        problems = []
        if gold_rubric(config) and reward_asks(config):
            problems.append(
                "needs.judge: reward=judge would use the same judge as the gold that checks it; name a reward model "
                "for one of them: needs.gold=DIR, or reward=bt"
            )
        if audit_asks(config) and reward_asks(config):
            problems.append(
                "reward.audit.labels_from=judge: reward=judge trains on the same judge, so the audit could not detect "
                "that the policy exploits it; use reward.audit.labels_from=gold with needs.gold=DIR, or reward=bt"
            )
        return problems


def is_requested(config: Config) -> bool:
    """Return True if the stage sends requests to the judge: by itself, for its reward, for gold, or for an audit."""
    own = config.algorithm.asks_judge or reward_asks(config)
    return own or bool(gold_rubric(config)) or audit_asks(config)


def reward_asks(config: Config) -> bool:
    """Return True if a term of the stage's reward sends requests to the judge."""
    if "reward" not in config.algorithm.inputs.sections:
        return False
    return any(term.asks_judge for term in config.reward.terms.values())


def audit_asks(config: Config) -> bool:
    """Return True if the judge compares the policy with the start policy of the training (`reward.audit`)."""
    return config.reward.audit.labels_from == "judge" and is_audited(config)


def gold_rubric(config: Config) -> str:
    """Return the rubric of `needs.judge` if the judge's grades are the gold reward of the stage, else ""."""
    if config.algorithm.reward_use.measures_gold:
        return config.needs.get("judge") or ""
    return ""


def rubric_files(config: Config) -> dict[str, str]:
    """Return the rubric files that a stage uses with the judge, as dotted setting → file."""
    asking = {"algorithm": config.algorithm} if config.algorithm.asks_judge else {}
    if "reward" in config.algorithm.inputs.sections:
        asking |= {f"reward.terms.{name}": term for name, term in config.reward.terms.items() if term.asks_judge}
    files = {}
    for where, settings in asking.items():
        # an empty rubric means the shipped one for grading, and no criteria for comparing
        grades = getattr(settings, "mode", "grade") == "grade"
        if hasattr(settings, "rubric") and (settings.rubric or grades):
            files[f"{where}.rubric"] = settings.rubric
    gold = gold_rubric(config)
    if gold:
        files["needs.judge"] = gold
    return files


@register("judge", "simulated")
@dataclass(frozen=True)
class Simulated(JudgeSettings):
    """Simulated judge that knows the embedded world (`data=mini_hh`), with adjustable bias and noise. Sends nothing.

    It prefers the response with the higher appeal: the believed quality in points of the true reward, plus biases and
    noise. Single responses are graded as set in `data.grader`.

    It also writes (see `teacher.py`): responses, critiques under named principles, revisions that repair what a
    critique named, and prompts of the world.

    Args:
        believes: `gold` sees the true reward; `annotator` sees what the world's annotator sees, with the same biases.
        noise: standard deviation of the error of a comparison in gold points; fixed for a question and its order.
        position_bias: gold points added to the response shown first.
        length_bias: gold points per 10 words.
        self_preference: gold points added to responses of `author`.
        author: name of the policy that the judge favours.
        tie_margin: an appeal difference below this many gold points is a tie.
        unusable: fraction of answers, 0…1, that are refused, truncated or unreadable, in equal parts.
        skill: latent quality, 0…1, of the responses it writes; candidates of the corpus are uniform in it.
        misses: probability that a critique omits a principle that the response violates.
        false_alarms: probability that a critique names a principle that the response does not violate.
        repairs: probability that a revision repairs a fault that the critique named.
        copies: fraction of new prompts that repeat the example.
        seed: seed of the noise and of the texts.
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
                f"self_preference={self.self_preference} favours no policy; name the policy in author",
            ),
        )


@dataclass(frozen=True)
class Service(JudgeSettings):
    """A model behind a service: settings of every request to it.

    Args:
        model: the service's name of the model; required.
        base_url: URL of the service; empty is the vendor's own address.
        api_key_env: environment variable with the API key. Empty is the vendor's usual one, and none for a self-hosted
            server. The key itself is never stored or printed.
        parallel: maximum number of requests in flight.
        requests_per_minute, tokens_per_minute: rate limits; 0 is no limit.
        retries: number of further attempts after a temporary failure (429, 5xx, no connection). The service can set
            the delay.
        request_timeout_s: maximum number of seconds of an attempt, from the connection to the last byte of the answer.
        batches: send many requests as batches, at the batch price; they are answered within a day.
        batch_requests: maximum number of requests in a batch.
        poll_s: seconds between two checks whether a batch is done.
        budget_usd: maximum spending in USD of one run or command, over all its restarts; null is no limit. Every
            request reserves its maximum cost before it is sent.
        input_usd, output_usd: price of a million tokens; null uses the price table
            (`rlhf_lab/packs/judging/judges/prices.toml`). A service without a known price needs both.
        store: SQLite file of answers, ledger and batches; empty is judges.sqlite in `outputs`, shared by all its runs.
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
                "base_url contains a user name, password or query, which would be stored; put the key into an "
                "environment variable and name it in api_key_env",
            ),
            (
                # Many keys would be valid lower-case names, and the name is printed if its variable is not set. So only
                # capitals are accepted.
                not self.api_key_env or bool(VARIABLE.fullmatch(self.api_key_env)),
                "api_key_env is not the name of an environment variable in capitals, such as MY_KEY; write the "
                "variable's name, never the key itself",
            ),
            (
                (self.input_usd is None) == (self.output_usd is None),
                f"input_usd={self.input_usd}, output_usd={self.output_usd}: set both or neither",
            ),
        )


def _carries_secret(url: str) -> bool:
    parts = urlsplit(url)
    return "@" in parts.netloc or bool(parts.query)


@register("judge", "anthropic")
@dataclass(frozen=True)
class Anthropic(Service):
    """Anthropic's API through its own SDK (`pip install 'rlhf_lab[judge]'`): prompt caching and structured output."""

    library: ClassVar[str] = "anthropic"
    default_key_env: ClassVar[str] = "ANTHROPIC_API_KEY"
    default_url: ClassVar[str] = "https://api.anthropic.com"


@register("judge", "openai_compatible")
@dataclass(frozen=True)
class OpenAICompatible(Service):
    """Any service with OpenAI's chat-completions API: OpenAI, vLLM, llama.cpp, Ollama (through OpenAI's SDK).

    Args:
        structured: how the form of an answer is requested: `json_schema`; `json_object` if the service supports no
            schemas; `none` leaves it to the instructions.
        temperature: sampling temperature; null sends none, for models that accept none.
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
    """A model on this machine, sampled by the built-in sampler. Costs nothing.

    Args:
        path: directory or hub id of a causal language model with a chat template, or of one trained by rlhf_lab.
        temperature: sampling temperature; 0 is greedy.
        max_prompt_tokens: maximum number of tokens of a question. Longer questions are truncated on the left and
            counted.
        batch_rows: number of questions answered in one batch.
    """

    deciding: ClassVar[tuple[str, ...]] = ("version", "path", "temperature", "max_prompt_tokens")
    path: Annotated[str, NotEmpty(hint="write the directory or hub id of a model, judge.path=…")] = ""
    temperature: Annotated[float, Ge(0, hint="0 is greedy")] = 0.0
    max_prompt_tokens: Annotated[int, Ge(1)] = 2048
    batch_rows: Annotated[int, Ge(1)] = 32

    def key_material(self, config: Config) -> dict[str, Any]:
        material = super().key_material(config)
        if "judge" in material:
            material["judge"]["content"] = model_identity(self.path)
        return material

    def local_models(self, config: Config) -> dict[str, str]:
        return {"judge": self.path} if is_requested(config) else {}
