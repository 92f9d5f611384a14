"""Sections of the root config: what is described apart from the groups of `conf/`. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from rlhf_lab.core.errors import require


@dataclass(frozen=True)
class Evaluation:
    """How policies are compared on held-out prompts.

    Args:
        prompts: held-out prompts, the same for every policy.
        samples_per_prompt: replies per prompt and policy; intervals are clustered by prompt.
        pairs: held-out preference pairs for ranking accuracy and chosen-likelihood drift.
        seed: of the sampling noise. Each policy draws from its own stream.
        pass_at: values of k for which `pass@k` and, where replies state a final answer, `maj@k` are measured, over all
            subsets of k of the samples (`statistics/repeated_samples.py`); data with verifiable replies only.
        clips: of speech, held-out prompts whose first sample under every policy is kept as audio, to be heard in the
            report.
    """

    smoke: ClassVar[dict[str, int]] = {"prompts": 48, "samples_per_prompt": 2, "pairs": 100}
    smoke_real: ClassVar[dict[str, int]] = {"prompts": 6, "pairs": 12}
    keyed_if_set: ClassVar[tuple[str, ...]] = ("pass_at", "clips")
    prompts: int = 384
    samples_per_prompt: int = 4
    pairs: int = 500
    seed: int = 0
    pass_at: tuple[int, ...] = ()
    clips: int = 12

    def __post_init__(self) -> None:
        most = max(self.pass_at, default=1)
        require(
            (min(self.pass_at, default=1) >= 1, f"pass_at={list(self.pass_at)}; k starts at 1"),
            (
                most <= self.samples_per_prompt,
                f"pass_at={list(self.pass_at)} needs at least {most} samples per prompt; set samples_per_prompt={most} "
                f"or higher (it is {self.samples_per_prompt})",
            ),
            (self.prompts >= 2, f"prompts={self.prompts}; an interval over prompts needs at least 2"),
            (self.samples_per_prompt >= 1, f"samples_per_prompt={self.samples_per_prompt} must be at least 1"),
            (self.pairs >= 2, f"pairs={self.pairs} must be at least 2"),
            (self.clips >= 0, f"clips={self.clips} is negative; 0 keeps no audio"),
        )


@dataclass(frozen=True)
class Runtime:
    """Where and with what arithmetic a stage computes.

    Args:
        device: `auto` takes a GPU when there is one.
        dtype: arithmetic of training; parameters and optimiser state stay float32. `bfloat16` is autocast.
        threads: CPU threads per process. 0 is one for the small models of `model.kind=scratch`, where a second thread
            costs more than it gives (26 against 33 ms per SFT step), and all cores, shared between the jobs of a
            study, for others.
        stages_at_once: stages of a run that are built at the same time where they do not wait for each other. 0 is one
            for each core with the small models of `model.kind=scratch` on a CPU, which keep one core busy each; others
            are built in turn, whatever is written here.
        memory_gib: memory of the device that a run is planned for, in place of what the system says. A stage whose
            weights, gradients and optimiser state are more than that is refused before anything is loaded.
        fit: `auto` lets a stage that would not fit the device sample fewer rows at once, train on smaller micro-batches
            and keep no activations; and after the device has run out of memory, take a step again in smaller parts.
            No result depends on it. `none` computes as is written. null is `auto` for models that are not made from
            scratch, else `none`.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int = 0
    stages_at_once: int = 0
    memory_gib: float | None = None
    fit: Literal["auto", "none"] | None = None

    def __post_init__(self) -> None:
        require(
            (self.memory_gib is None or self.memory_gib > 0, f"memory_gib={self.memory_gib} must be above 0"),
            (self.stages_at_once >= 0, f"stages_at_once={self.stages_at_once} must be 0 or above; 1 is one by one"),
        )


@dataclass(frozen=True)
class Checkpoint:
    """How often an interrupted stage can be picked up. Has no influence on results.

    Args:
        every_steps: optimiser steps between checkpoints; 0 writes none.
        background: write them while training goes on, from a copy in host memory; by default for models that are not
            from scratch. What is on the disk is always a whole checkpoint.
    """

    every_steps: int = 100
    background: bool | None = None


@dataclass(frozen=True)
class Artifacts:
    """When a stage is taken from the store.

    Args:
        refresh: rebuild every stage of this run even when the store has it.
        code: `check` reuses a stored result only if the code that made it is the code that would make it now;
            `ignore` takes the latest result of the same settings by whatever code, and says so.
        distinct: sections that make a run another one although they do not decide its result, such as [sharding]: to
            compare what it costs. Stages before the run have none.
    """

    refresh: bool = False
    code: Literal["check", "ignore"] = "check"
    distinct: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        unknown = [name for name in self.distinct if name not in ("sharding", "runtime")]
        require((not unknown, f"distinct={unknown}; choose from sharding, runtime"))


@dataclass(frozen=True)
class Sandboxing:
    """Where programs run that a model wrote, and their tests; see docs/sandbox.md.

    Args:
        level: how much isolation. `auto` takes the first of `namespaces+seccomp`, `container` (docker or podman) and
            `namespaces` that works on this machine, and stops the run where none does. `rlimits` is never chosen by
            itself: a program under it reads the user's files and uses the network.
        timeout_s: seconds that a program may take, and of processor time each of its processes.
        memory_mib: address space of each process of a program; of all together where a control group can be made.
        disk_mib: of all files that a program writes.
        processes: processes and threads of a program at a time.
        output_kib: that a program may write to standard output, and to standard error.
        image: of `level=container`; it needs `python3`.
    """

    level: Literal["auto", "namespaces+seccomp", "container", "namespaces", "rlimits"] = "auto"
    timeout_s: float = 10.0
    memory_mib: int = 512
    disk_mib: int = 16
    processes: int = 16
    output_kib: int = 256
    image: str = "python:3.11-slim"

    def __post_init__(self) -> None:
        require(
            (self.timeout_s > 0, f"timeout_s={self.timeout_s} must be above 0"),
            (self.memory_mib >= 32, f"memory_mib={self.memory_mib}; the interpreter alone needs 32"),
            (self.disk_mib >= 1, f"disk_mib={self.disk_mib} must be at least 1"),
            (self.processes >= 1, f"processes={self.processes} must be at least 1"),
            (self.output_kib >= 1, f"output_kib={self.output_kib} must be at least 1"),
        )

    @property
    def limits(self) -> dict[str, float]:
        """What decides what a program can do; how well it is isolated does not."""
        return {name: value for name, value in asdict(self).items() if name not in ("level", "image")}


@dataclass(frozen=True)
class Mixture:
    """Which rows a stage trains on where `needs` names corpora that a stage has made (`needs.corpus=cai_preferences`).

    Of the named stage alone: one before it follows `stages.RECIPE.mixture`.

    Args:
        shares: source → its part of the training rows, in proportion: `data` is the data's own rows, the others are
            roles of `needs` that hold a corpus (`corpus`, `corpus_…`). A source that is not named has no part. null
            takes the made corpora whole and none of the data's own rows.
        rows: training rows in all, drawn at random; a smaller draw lies within a larger one. 0 takes as many as the
            shares allow with no row twice.
        vocabulary: whose words a model made from scratch gets tokens for: `data` is the data's own rows, so that models
            of different mixtures share a vocabulary; `all` adds every row of the corpora, whatever the shares, for
            corpora that speak of another world. A model that is loaded has its own.
    """

    keyed_if_set: ClassVar[tuple[str, ...]] = ("vocabulary",)
    shares: dict[str, float] | None = None
    rows: int = 0
    vocabulary: Literal["data", "all"] = "data"

    def __post_init__(self) -> None:
        values = list((self.shares or {}).values())
        usable = all(math.isfinite(value) and value >= 0 for value in values)
        require(
            (usable, f"shares={self.shares}; write numbers, 0 or above"),
            (self.shares is None or any(values), f"shares={self.shares} are all 0; give one source a part"),
            (self.rows >= 0, f"rows={self.rows} must be 0 (as many as the shares allow) or above"),
        )


@dataclass(frozen=True)
class Monitor:
    """Watches the replies that a policy is trained on for signs of reward hacking. The rules: `monitoring/detector.py`.

    Args:
        action: what a strong warning does: `log` only tells (metrics.jsonl, monitor.jsonl, result.json); `raise_kl`
            multiplies the KL coefficient; `stop` ends training before it learns from these replies, evaluates and
            completes the stage; `pause` saves before it learns from them and ends the command, which goes on from
            there with alerts.continue_paused=true; `off` does not watch.
        every: iterations whose replies make one checkpoint. In iterative DPO a round is one.
        warmup: checkpoints of the baseline. In iterative DPO it is the first round, which the starting policy samples.
        signals: rules that count: `length_z`, `reward_kl`, `length_cusum`, `disagreement` (ensembles only).
        needed: so many of `signals` in alarm at one checkpoint are a strong warning; fewer, but one, a warning.
            Where part of the reward is the outcome of the task, `parting` stands for `reward_kl`, and suffices.
        z: standard errors of the mean length beyond which `length_z` is in alarm. Two-sided: 2.5 is a false alarm at
            1.2 % of checkpoints, and somewhere in 30 of them at about 31 %.
        kl: nats of KL(initial reward distribution ‖ current) beyond which `reward_kl` is in alarm, while it rises; a
            mean that rises by half its sd gives .13.
        rising: checkpoints over which it has to rise; the baseline counts as one with 0.
        budget: probability that a CUSUM is in alarm anywhere in the planned run although nothing changed beyond
            `tolerance`; of each of the two.
        tolerance: relative change of the mean length or disagreement that a CUSUM accepts, and `length_z` where an
            environment answers.
        factor: of `raise_kl`. It acts at most once in `rising` checkpoints. An adaptive controller's target is divided
            by it, so that the controller does not undo it.
    """

    action: Literal["off", "log", "raise_kl", "stop", "pause"] = "log"
    every: int = 1
    warmup: int = 5
    signals: tuple[Literal["length_z", "reward_kl", "length_cusum", "disagreement"], ...] = ("length_z", "reward_kl")
    needed: int = 2
    z: float = 2.5
    kl: float = 0.15
    rising: int = 3
    budget: float = 0.05
    tolerance: float = 0.1
    factor: float = 2.0

    def __post_init__(self) -> None:
        require(
            (self.every >= 1 and self.warmup >= 1, f"every={self.every}, warmup={self.warmup} must be at least 1"),
            (0 < len(self.signals) == len(set(self.signals)), f"signals={list(self.signals)}: one or more, each once"),
            (1 <= self.needed <= len(self.signals), f"needed={self.needed}; there are {len(self.signals)} signals"),
            (self.z > 0 and self.kl > 0, f"z={self.z}, kl={self.kl} must be above 0"),
            (self.rising >= 2, f"rising={self.rising} must be at least 2"),
            (0 < self.budget < 1, f"budget={self.budget} is a probability, in (0, 1)"),
            (self.tolerance >= 0, f"tolerance={self.tolerance} must be 0 or above"),
            (self.factor > 1, f"factor={self.factor} must be above 1"),
        )


@dataclass(frozen=True)
class Alerts:
    """Who is told of an alarm of the monitor, and whether a paused stage goes on. Has no influence on results.

    Args:
        command: a program and its arguments, such as [python,notify.py]; it gets the alarm as JSON on standard input.
            No shell reads it. [] runs none.
        webhook_env: name of the environment variable that holds the address to which the alarm is posted as JSON; ""
            posts nothing. The address itself is a secret and does not belong into a config.
        levels: of which levels they are told: `warning`, `hard_stop`. Each is told once, and `hard_stop` whenever it
            pauses the stage.
        timeout_s: seconds that the command, and the answer to the post, may take. Training waits for them.
        continue_paused: a stage that `reward.monitor.action=pause` has paused goes on from where it was saved, and
            further strong warnings of this command only tell.
    """

    command: tuple[str, ...] = ()
    webhook_env: str = ""
    levels: tuple[Literal["warning", "hard_stop"], ...] = ("warning", "hard_stop")
    timeout_s: float = 10.0
    continue_paused: bool = False

    def __post_init__(self) -> None:
        require(
            (
                not self.webhook_env or self.webhook_env.isidentifier(),
                "webhook_env is no name of an environment variable; export the address under a name of your own and "
                "write that name, such as webhook_env=ALERT_WEBHOOK",
            ),
            (not self.command or bool(self.command[0]), "command begins with an empty word; name a program"),
            (bool(self.levels), "levels is empty; write one or both of warning, hard_stop"),
            (0 < self.timeout_s <= 600, f"timeout_s={self.timeout_s} must be above 0 and at most 600"),
        )


@dataclass(frozen=True)
class RewardGraph:
    """Terms → standardise → transform → aggregate → gates → calibrate → clip. Every node's value is kept per reply.

    Args:
        terms: name → settings of the term.
        weights: name → weight, all at once, in place of the terms' own: `reward.weights={bt:.7,programmatic:.3}`. A
            term that is not named weighs 0.
        aggregate: `weighted_sum` of the terms; `mean` divides it by the sum of the weights. Without weights, each term
            with the sign of a reward: `worst` is the smallest term, `uwo` their mean − penalty_weight · spread
            (arXiv:2310.02743, eq. 5). A reply that a term leaves unscored is unscored, unless the term weighs 0.
        penalty_weight: λ of `uwo`.
        penalty: spread of the terms' values: `var`, their variance, or `sd`.
        ddof: 0 divides the variance by the number of terms, 1 by one less.
        temperature: the aggregate is divided by it.
        ceiling: bounds the reward smoothly, ceiling · tanh(r/ceiling), before stated confidence; 0 is off.
        max_confidence: the same bound as a confidence: with a ceiling of logit(max_confidence)/2 no margin Δ between
            two replies claims a preference probability σ(Δ) above this. In (0.5, 1); 0 is off.
        confidence_weight: w of PPO-C (arXiv:2410.09724): a reply that states its confidence c, see
            `rewards/confidence.py`, gets r + w·(r − r̄)·(c − ½), r̄ the mean reward of training so far, and the terms
            see it without that statement; a reply that states none is left as it is. 0 is off.
        confidence_decay: α of the running mean of training batches, r̄ ← (1 − α)·r̄ + α·(mean of the batch), from 0.
        clip: bounds the reward hard to ± this; 0 is off.
        monitor: watches what training on this reward does to the replies.
    """

    terms: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, float] | None = None
    aggregate: Literal["weighted_sum", "mean", "worst", "uwo"] = "weighted_sum"
    penalty_weight: float = 0.5
    penalty: Literal["var", "sd"] = "var"
    ddof: int = 0
    temperature: float = 1.0
    ceiling: float = 0.0
    max_confidence: float = 0.0
    confidence_weight: float = 0.0
    confidence_decay: float = 0.1
    clip: float = 0.0
    monitor: Monitor = field(default_factory=Monitor)

    def __post_init__(self) -> None:
        weighed, total = self.aggregate in ("weighted_sum", "mean"), sum(self.weighting.values())
        unknown = [name for name in self.weights or {} if name not in self.terms]
        reserved = [name for name in ("aggregate", "confidence") if name in self.terms]
        require(
            (bool(self.terms), "terms is empty; choose at least one, e.g. reward=bt"),
            (not reserved, f"terms: {', '.join(reserved)} is the name of another node"),
            (not unknown, f"weights: {', '.join(unknown)} is not one of the terms {', '.join(self.terms)}"),
            (all(map(math.isfinite, self.weighting.values())), f"weights={self.weights}; write finite numbers"),
            (self.weights is None or weighed, f"weights are not read by aggregate={self.aggregate}"),
            (
                not (self.terms and weighed) or any(self.weighting.values()),
                "weights are all 0; give one term a weight",
            ),
            (self.aggregate != "mean" or total != 0, f"aggregate=mean divides by the sum of weights, {total}"),
            (self.aggregate != "uwo" or len(self.terms) > 1, "aggregate=uwo needs two terms or more"),
            (
                all(map(math.isfinite, (self.ceiling, self.clip, self.temperature, self.confidence_weight))),
                "ceiling, clip, temperature and confidence_weight must be finite; 0 turns a bound off",
            ),
            (self.penalty_weight >= 0, f"penalty_weight={self.penalty_weight} must be 0 or above"),
            (self.ddof in (0, 1), f"ddof={self.ddof} must be 0 or 1"),
            (self.temperature > 0, f"temperature={self.temperature} must be above 0"),
            (self.ceiling >= 0 and self.clip >= 0, f"ceiling={self.ceiling}, clip={self.clip}: 0 (off) or above"),
            (
                self.max_confidence == 0 or 0.5 < self.max_confidence < 1,
                f"max_confidence={self.max_confidence} must be 0 (off) or in (0.5, 1)",
            ),
            (not (self.ceiling and self.max_confidence), "ceiling and max_confidence are two ways to say one thing"),
            (self.confidence_weight >= 0, f"confidence_weight={self.confidence_weight} must be 0 (off) or above"),
            (0 <= self.confidence_decay <= 1, f"confidence_decay={self.confidence_decay} is outside [0, 1]"),
        )

    @property
    def weighting(self) -> dict[str, float]:
        """Term → its weight."""
        if self.weights is None:
            return {name: getattr(term, "weight", 1.0) for name, term in self.terms.items()}
        return {name: self.weights.get(name, 0.0) for name in self.terms}

    @property
    def calibrates(self) -> bool:
        """Whether the reward is something else than the aggregate."""
        return self.temperature != 1 or any((self.ceiling, self.max_confidence, self.confidence_weight, self.clip))

    @property
    def roles(self) -> set[str]:
        """Entries of `needs` that the terms read."""
        return {term.needs_role for term in self.terms.values() if term.needs_role}

    @property
    def folder_roles(self) -> set[str]:
        """Those of them that hold what a stage wrote into its directory, and no language model with a head."""
        return {term.needs_role for term in self.terms.values() if term.needs_role and term.reads_folder}

    @property
    def gates(self) -> dict[str, Any]:
        """Terms that can refuse a reply, whatever else it earned: name → settings with `floor` and `below`."""
        return {name: term for name, term in self.terms.items() if getattr(term, "floor", None) is not None}


@dataclass(frozen=True)
class Agents:
    """Who attempts tasks, and the model that they speak through. Read by stages that run agents.

    Args:
        programs: name → settings of the agent.
        llm: the model behind the agents: `local` is the policy in `needs.policy`, by the lab's own sampler; `anthropic`
            and `openai_compatible` are services, asked as judges are, from the same store and the same budget.
        service: settings of that service, over conf/judge/<llm>.yaml: `agent.service.model=NAME`,
            `agent.service.base_url=…`, `agent.service.budget_usd=…`; `explain judge=anthropic` lists them. Empty for
            `local`.
        temperature: of sampling; null is 0 for `local`, and what `service` says for a service.
        max_turns: most turns of the model in one attempt at a task, over all parts of an agent.
        max_calls: most calls of tools in one attempt; running a program is one.
        max_prompt_tokens: of the local model: a longer conversation loses its beginning, which a note counts; null is
            what its positions leave beside a turn.
        max_tokens: of a turn; null is `rollout.max_new_tokens` for `local`, and 1024 for a service.
        calls: `native` offers the tools to the model in its own form, `text` has it write calls as text; `auto` is
            native where the service or the model's chat template takes tools.
        prompt: `instructions` say what to do and list the tools; `brief` says no more than models are trained on that
            the lab makes from scratch; `auto` is brief for those, instructions for others.
        mark_results: instructions have results of tools between <result> and </result>, as data that is not to be
            obeyed; false shows them as they are, to measure what the marks are worth.
    """

    programs: dict[str, Any] = field(default_factory=dict)
    llm: Literal["local", "anthropic", "openai_compatible"] = "local"
    service: Any = field(default_factory=dict)
    temperature: float | None = None
    max_turns: int = 24
    max_calls: int = 24
    max_prompt_tokens: int | None = None
    max_tokens: int | None = None
    calls: Literal["auto", "native", "text"] = "auto"
    prompt: Literal["auto", "brief", "instructions"] = "auto"
    mark_results: bool = True

    def __post_init__(self) -> None:
        require(
            (bool(self.programs), "programs is empty; choose at least one, e.g. agent=react"),
            (
                self.temperature is None or self.temperature >= 0,
                f"temperature={self.temperature} must be 0 (greedy) or above",
            ),
            (self.max_turns >= 1, f"max_turns={self.max_turns} must be at least 1"),
            (self.max_calls >= 0, f"max_calls={self.max_calls} must be 0 or above"),
            (self.max_tokens is None or self.max_tokens >= 1, f"max_tokens={self.max_tokens} must be at least 1"),
            (
                self.max_prompt_tokens is None or self.max_prompt_tokens >= 1,
                f"max_prompt_tokens={self.max_prompt_tokens} must be at least 1",
            ),
            (
                self.calls != "native" or self.prompt != "brief",
                "calls=native with prompt=brief: a model that is spoken to in brief writes calls as text; choose "
                "calls=text or prompt=instructions",
            ),
        )

    @property
    def service_settings(self) -> Any:
        """The settings of the service, at the agents' temperature where that is written."""
        return self.service if self.temperature is None else replace(self.service, temperature=self.temperature)

    @property
    def asks_service(self) -> bool:
        """Whether a service is asked."""
        return self.llm != "local" and self.asks_model

    @property
    def asks_policy(self) -> bool:
        """Whether one of the agents speaks through the policy in `needs.policy`."""
        return self.llm == "local" and self.asks_model

    @property
    def asks_model(self) -> bool:
        """Whether one of the agents speaks through the model."""
        return any(program.asks_model for program in self.programs.values())

    def most_requests(self, attempts: int) -> int:
        """Requests of so many attempts by each agent, at most."""
        return attempts * self.max_turns * sum(program.asks_model for program in self.programs.values())


@dataclass(frozen=True)
class Prediction:
    """One claim that a study can decide: a metric of a level against another level.

    Args:
        metric: one of the study's metrics.
        level: of the compared key.
        direction: `higher` or `lower` than `versus`; or `same`, within `margin` of it.
        versus: the level it is compared with; None is the baseline.
        margin: largest difference that still counts as the same, in units of the metric.
        by: level of the study's `by`, where the claim is about one; None takes all together.
    """

    metric: str
    level: Any
    direction: Literal["higher", "lower", "same"]
    versus: Any = None
    margin: float = 0.0
    by: Any = None

    def __post_init__(self) -> None:
        require((self.direction != "same" or self.margin > 0, "direction=same needs a margin above 0"))


@dataclass(frozen=True)
class FrontOf:
    """Two metrics by which no level of a study need be best.

    Args:
        metrics: both among the study's metrics, and each with a direction that is better.
        margin: by how much a level may be worse in one of them and still dominate another, in the metrics' unit.
    """

    metrics: list[str]
    margin: float = 0.02

    def __post_init__(self) -> None:
        require(
            (len(set(self.metrics)) == 2, f"metrics={self.metrics}; a front is of two metrics"),
            (self.margin >= 0, f"margin={self.margin} must be 0 or above"),
        )


@dataclass(frozen=True)
class Study:
    """A sweep that ends in one table and one plot.

    Args:
        question: what the study answers, one sentence.
        hypothesis: what the literature or the issue expects, labelled as published in the table; never a result.
        predicts: the hypothesis as claims that the numbers decide: confirmed, not confirmed, or not distinguishable.
        sweep: override key → values; all combinations run. A command-line value for a key replaces it.
        compare: the key whose levels are compared.
        by: another swept key; levels are then compared within each of its values, a table each. Empty: all together.
        baseline: the level that the others are compared with.
        metrics: reported metrics; the first is the primary one.
        labels: swept key → how its values are called in sentences, tables and figures: a text with "{}", such as
            "{} pairs", or value → text. Without one a value is called by its key and itself, "beta 0.1".
        curves: `overoptimization` adds gold and proxy against √KL along training, a fitted curve per level and where
            it turns (arXiv:2210.10760).
        fronts: pairs of metrics of which the table and the report say which levels are not dominated.
        processes: jobs that run at once on this machine.
        size: `full` is the recipe as written; `quick` is the same with the overrides in `quick`.
        quick: override → value; what makes the study small.
    """

    question: str = ""
    hypothesis: str | None = None
    predicts: list[Prediction] = field(default_factory=list)
    sweep: dict[str, list[Any]] = field(default_factory=dict)
    compare: str = ""
    by: str = ""
    baseline: Any = None
    metrics: list[str] = field(default_factory=list)
    labels: dict[str, Any] = field(default_factory=dict)
    curves: Literal["overoptimization"] | None = None
    fronts: list[FrontOf] = field(default_factory=list)
    processes: int = 2
    size: Literal["full", "quick"] = "full"
    quick: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        levels = self.sweep.get(self.compare, [])
        require(
            (bool(self.sweep), "sweep is empty; name at least the compared key and seed"),
            (self.compare in self.sweep, f"compare={self.compare} is not a key of sweep: {', '.join(self.sweep)}"),
            (not levels or self.baseline in levels, f"baseline={self.baseline} is not one of {levels}"),
            (bool(self.metrics), "metrics is empty; the first one is the primary metric"),
            (not self.by or self.by in self.sweep, f"by={self.by} is not a key of sweep: {', '.join(self.sweep)}"),
            (
                not self.by or self.by not in (self.compare, "seed"),
                f"by={self.by} must be a key besides compare and seed",
            ),
            (self.size == "full" or bool(self.quick), "size=quick: this study has no quick size"),
            *(
                (key in (self.compare, self.by), f"labels: {key} is neither compare={self.compare} nor by={self.by}")
                for key in self.labels
            ),
            *(
                (isinstance(names, dict) or "{}" in str(names), f"labels.{key}={names} has no {{}} for the value")
                for key, names in self.labels.items()
            ),
            (not (self.fronts and self.by), f"fronts are of all jobs together; leave out by={self.by}"),
            *(
                (name in self.metrics, f"fronts: {name} is not among metrics: {', '.join(self.metrics)}")
                for front in self.fronts
                for name in front.metrics
            ),
            *(
                (p.metric in self.metrics, f"predicts: {p.metric} is not among metrics: {', '.join(self.metrics)}")
                for p in self.predicts
            ),
            *(
                (not levels or p.level in levels, f"predicts: {p.level} is not a level of {self.compare}: {levels}")
                for p in self.predicts
            ),
        )
