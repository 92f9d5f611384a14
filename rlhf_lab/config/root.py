"""The root config, the rules between its sections (`config/sections.py`), and what a resolved config is.

A composed config is plain YAML values. `check` turns it into dataclasses or raises one ConfigError with every problem.
It runs before torch is imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from rlhf_lab.config import registry, schema
from rlhf_lab.config.files import folder, read_yaml
from rlhf_lab.config.groups import DataSource, JudgeSource, Rollout, Sharding
from rlhf_lab.config.hearing import HEAR_PHONES, audible
from rlhf_lab.config.overrides import merge
from rlhf_lab.config.sections import (
    Agents,
    Alerts,
    Artifacts,
    Checkpoint,
    Evaluation,
    Mixture,
    RewardGraph,
    Runtime,
    Sandboxing,
    Study,
)
from rlhf_lab.core.errors import ConfigError

GROUPS = tuple(registry.PACKAGES)
SERVICES = ("anthropic", "openai_compatible")
"""Values of `agent.llm` that are kinds of judges as well: services that are asked by the judges' transport."""
TRL_OPTIONS = "rlhf_lab.algorithms.trl.options"
"""The module that knows which settings TRL can honour. Imported by name: config may not import from algorithms."""


@dataclass(frozen=True)
class Config:
    """One run, completely described.

    Args:
        model: what is trained, and the settings that train it well (`model.tuned`).
        data: what it is trained and evaluated on.
        algorithm: how it is trained, or what is evaluated.
        reward: what scores replies: terms, and how they become one number.
        agent: who attempts tasks with tools, and the model behind it.
        judge: who answers where a language model is asked: to judge replies, or to write data.
        rollout: how replies are sampled.
        sharding: how the work is spread over processes.
        tracker: where metrics go besides the run's folder.
        evaluation: how policies are compared on held-out prompts.
        mixture: which rows are trained on where `needs` names made corpora.
        runtime: where and with what arithmetic a stage computes.
        sandbox: where programs run that a model wrote.
        checkpoint: how often an interrupted stage can be picked up.
        alerts: who is told of an alarm of the monitor, and whether a paused stage goes on.
        artifacts: when a stage is taken from the store.
        study: the sweep that a study recipe makes; null in a single run.
        engine: what trains: `native` is the lab's own loop, `trl` the trainers of TRL (`pip install 'rlhf_lab[trl]'`).
            Of the named stage alone: one before it follows `stages.RECIPE.engine`.
        seed: of initialisation, sampling and data order.
        needs: what the run starts from, by role: a recipe name (built on demand) or a model folder or hub id. `gold`
            is the reward model that says what replies are worth; `judge` makes that the judge, by a rubric: `assistant`
            or a YAML file.
        stages: recipe → settings that replace that upstream recipe's own, e.g. `stages.sft.algorithm.epochs=1`;
            `stages.gold` is for the recipe in `needs.gold` alone.
        outputs: folder of runs and studies, relative to the working directory.
        question: what the recipe answers, one sentence; printed when it starts.
        size: `full` is the recipe as written; `smoke` takes minutes, whatever the model, and its numbers mean nothing:
            see `config/smoke.py`. What the command line writes stays as written.
    """

    model: Any
    data: DataSource
    algorithm: Any
    reward: RewardGraph
    agent: Agents
    judge: JudgeSource
    rollout: Rollout
    sharding: Sharding
    tracker: object
    evaluation: Evaluation = field(default_factory=Evaluation)
    mixture: Mixture = field(default_factory=Mixture)
    runtime: Runtime = field(default_factory=Runtime)
    sandbox: Sandboxing = field(default_factory=Sandboxing)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    alerts: Alerts = field(default_factory=Alerts)
    artifacts: Artifacts = field(default_factory=Artifacts)
    study: Study | None = None
    engine: Literal["native", "trl"] = "native"
    seed: int = 0
    needs: dict[str, str | None] = field(default_factory=dict)
    stages: dict[str, Any] = field(default_factory=dict)
    outputs: str = "outputs"
    question: str = ""
    size: Literal["full", "smoke"] = "full"

    @property
    def runs_agents(self) -> bool:
        """Whether the stage runs the agents of `agent`."""
        return "agent" in self.algorithm.uses

    @property
    def asks_judge(self) -> bool:
        """Whether the stage asks the judge: by itself, through a term of its reward, or for gold."""
        return self.algorithm.asks_judge or self.reward_asks_judge or bool(self.gold_rubric)

    @property
    def reward_asks_judge(self) -> bool:
        """Whether a term of the stage's reward asks the judge."""
        return "reward" in self.algorithm.uses and any(term.asks_judge for term in self.reward.terms.values())

    @property
    def runs_code(self) -> bool:
        """Whether the stage runs programs in the sandbox: a verifier, a term of its reward, an agent, or a tool."""
        rewards = self.reward.terms.values() if "reward" in self.algorithm.uses else ()
        programs = self.agent.programs.values() if self.runs_agents else ()
        verifiers = () if self.verifier is None else (self.verifier,)
        return self.algorithm.tools_run_code or any(part.runs_code for part in (*rewards, *programs, *verifiers))

    @property
    def gold_rubric(self) -> str:
        """The rubric on which the judge grades replies for gold (`needs.judge`); empty where it does not."""
        return (self.needs.get("judge") or "") if self.algorithm.measures_gold else ""

    @property
    def verifier(self) -> Any:
        """Settings of the verifier that measures replies; None where the data's own oracle does.

        `data.verifier` names its kind, with the settings of the reward's term of that kind where there is one. Where it
        names none, the only verifier of the reward measures too.
        """
        terms = self.reward.terms.values() if "reward" in self.algorithm.uses else ()
        verifiers = [term for term in terms if term.verifies]
        kind = getattr(self.data, "verifier", None)
        if kind is None:
            return verifiers[0] if len(verifiers) == 1 else None
        same_kind = [term for term in verifiers if registry.kind_of("reward", term) == kind]
        default: Any = registry.settings_class("reward", kind)
        return same_kind[0] if same_kind else default()

    @property
    def fits_itself(self) -> bool:
        """Whether stages are made to fit the device by settings that change no result; see `Runtime.fit`."""
        if self.engine != "native":
            return False
        return self.runtime.fit == "auto" or (self.runtime.fit is None and not self.model.small_scale)

    @property
    def checkpoints_in_background(self) -> bool:
        """`checkpoint.background`, with its default."""
        return not self.model.small_scale if self.checkpoint.background is None else self.checkpoint.background

    @property
    def corpus_roles(self) -> tuple[str, ...]:
        """Roles of `needs` whose rows are trained on, in the order in which they are written."""
        return tuple(role for role, source in self.needs.items() if source and is_corpus_role(role))

    @property
    def row_roles(self) -> dict[str, str]:
        """Role → the kind of rows that its made corpus has to have, see `data.made.KINDS`."""
        return {**self.algorithm.reads_rows, **dict.fromkeys(self.corpus_roles, self.algorithm.trains_on)}

    def reads_folder(self, role: str) -> bool:
        """Whether a role wants what a stage wrote into its directory, not the model it made."""
        return role in self.algorithm.data_roles or role in self.row_roles or role in self.reward.folder_roles

    def leaves_out(self, role: str) -> bool:
        """Whether a role is named for what this run does not have, so that nothing is built for it: terms of the
        reward, or agents that speak through the policy."""
        if role == "policy" and self.runs_agents:
            return not self.agent.asks_policy
        return role in ("reward", *spare_roles()) and role not in self.reward.roles


def is_corpus_role(role: str) -> bool:
    """Whether a role of `needs` holds rows to train on: `corpus`, `corpus_agents`, …"""
    return role == "corpus" or role.startswith("corpus_")


def spare_roles() -> list[str]:
    """Roles of reward terms that a recipe may name for some of its rewards only: those of audio."""
    terms: list[Any] = [registry.settings_class("reward", kind) for kind in registry.kinds("reward")]
    return sorted({term.needs_role for term in terms if term.needs_role and term.reads_folder})


def check(values: Mapping[str, Any]) -> Config:
    """Dataclasses for a composed config. Raises ConfigError with every problem found."""
    problems: list[str] = []
    root = _build(values, problems)
    if root is not None:
        root = _completed(root)
        problems.extend(_cross_check(root))
    if root is None or problems:
        raise ConfigError(problems)
    return root


def effective(values: Mapping[str, Any]) -> Config:
    """Dataclasses for composed values that need not be a whole run: the rules between sections are not checked."""
    problems: list[str] = []
    root = _build(values, problems)
    if root is not None:
        root = _completed(root)
    if root is None or problems:
        raise ConfigError(problems)
    return root


def _build(values: Mapping[str, Any], problems: list[str]) -> Config | None:
    """The sections and groups of a composed config; None where one of them is wrong."""
    plain: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    for key, value in with_tuned(values, problems).items():
        if key == "reward":
            groups[key] = _build_reward(value, problems)
        elif key == "agent":
            groups[key] = _build_agents(value, problems)
        elif key in GROUPS:
            groups[key] = _build_group(key, value, problems)
        else:
            plain[key] = value
    for group in GROUPS:
        if group not in values:
            problems.append(f"{group} is missing; choose one of {group}={'|'.join(registry.kinds(group))}")
    fields = {field.name for field in dataclasses.fields(Config)}
    for key in [key for key in plain if key not in fields]:
        # `recipe` is no field, but what people mean by `recipie`
        problems.append(f"{key} is not a setting{schema.did_you_mean(key, fields | {'recipe'})}")
        del plain[key]
    # A group that is wrong is None here, so that what else is wrong is found as well.
    root: Config | None = schema.build(Config, plain, "", problems, built={**dict.fromkeys(GROUPS), **groups})
    return None if any(groups.get(group) is None for group in GROUPS) else root


def _build_reward(values: Any, problems: list[str]) -> RewardGraph | None:
    """The reward graph, with its terms built first; None where one of them is wrong."""
    terms = values.get("terms") if isinstance(values, Mapping) else None
    if not isinstance(terms, Mapping):
        problems.append(f"reward has no terms; choose some of {'|'.join(registry.kinds('reward'))}, e.g. reward=bt")
        return None
    built = {name: _build_group("reward", term, problems, f"reward.terms.{name}") for name, term in terms.items()}
    if any(term is None for term in built.values()):
        return None
    return schema.build(RewardGraph, {**values, "terms": built}, "reward", problems)


def _build_agents(values: Any, problems: list[str]) -> Agents | None:
    """The agents and their service; None where one of them is wrong."""
    programs = values.get("programs") if isinstance(values, Mapping) else None
    if not isinstance(programs, Mapping):
        problems.append(f"agent has no programs; choose some of {'|'.join(registry.kinds('agent'))}, e.g. agent=react")
        return None
    built = {name: _build_group("agent", part, problems, f"agent.programs.{name}") for name, part in programs.items()}
    service = _build_service(values.get("llm", Agents.llm), values.get("service"), problems)
    if service is None or any(program is None for program in built.values()):
        return None
    return schema.build(Agents, {**values, "programs": built, "service": service}, "agent", problems)


def _build_service(llm: Any, values: Any, problems: list[str]) -> Any:
    """Settings of the agents' service, over those of the file of the same name; {} for `local`, None where wrong."""
    if not isinstance(values or {}, Mapping):
        problems.append(f"agent.service={values!r} is no mapping; write agent.service.model=NAME")
        return None
    if llm not in SERVICES:  # anything else than `local` is reported where the section is built
        if values:
            problems.append(
                f"agent.service.{next(iter(values))}: agent.llm={llm} asks no service; leave it out, or choose "
                "agent.llm=anthropic or agent.llm=openai_compatible"
            )
        return {}
    from_file = read_yaml(folder("conf") / "judge" / f"{llm}.yaml")
    return _build_group("judge", {**from_file, **(values or {}), "kind": llm}, problems, "agent.service")


def _build_group(group: str, values: Any, problems: list[str], where: str = "") -> Any:
    """Settings of the kind that a group's values name; None where they are wrong. `where` is their dotted path."""
    where = where or group
    if not isinstance(values, Mapping) or "kind" not in values:
        problems.append(f"{where} has no kind; choose one of {group}={'|'.join(registry.kinds(group))}")
        return None
    try:
        cls = registry.settings_class(group, str(values["kind"]))
    except ConfigError as error:
        problems.extend(error.problems)
        return None
    return schema.build(cls, {key: value for key, value in values.items() if key != "kind"}, where, problems)


def with_tuned(values: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Composed values in which the settings that are left to the model (`tuned_by_model`) have a value.

    What is written stays. A setting that is missing or null takes the model's value (`model.tuned`), else what the
    algorithm says for a small model (`at_small_scale`), else the default of its class. The learning rate of an adapter
    is then `model.lora.lr_multiple` times that under AdamW.
    """
    result = dict(values)
    model_class = _class_of("model", values.get("model"))
    if model_class is None:
        return result  # reported where the section is built
    model = merge(schema.defaults(model_class), values["model"])
    for section in ("algorithm", "rollout"):
        written = values.get(section) or {}
        cls = _class_of(section, written)
        if cls is None:
            continue  # reported where the section is built
        # model.tuned is keyed by algorithm; the sampler has the one entry `rollout`, whatever its kind
        name = "rollout" if section == "rollout" else written["kind"]
        tuned = _usable_tuned(model["tuned"], name, cls, problems)
        defaults = {**schema.defaults(cls), **_value_by_size(model_class, cls), **tuned}
        filled = {key: defaults[key] for key in cls.tuned_by_model if written.get(key) is None}
        optimizer = filled.get("optimizer", written.get("optimizer"))
        if model["lora"]["rank"] and optimizer in ("adamw", "adamw_8bit"):
            # a critic on the policy's own trunk is a head alone, which is trained as a whole
            rates = ("lr",) if written.get("critic") == "shared" else ("lr", "critic_lr")
            for rate in filled.keys() & set(rates):
                filled[rate] = float(filled[rate]) * float(model["lora"]["lr_multiple"])
        result[section] = {**written, **filled}
    return result


def values_by_size(model_class: Any) -> dict[str, dict[str, Any]]:
    """The default of `model.tuned`: what every algorithm, and the sampler, recommends for models of this size."""
    classes = {kind: registry.settings_class("algorithm", kind) for kind in registry.kinds("algorithm")}
    classes["rollout"] = registry.settings_class("rollout", "local")
    values = {name: _value_by_size(model_class, cls) for name, cls in classes.items()}
    return {name: settings for name, settings in values.items() if settings}


def _value_by_size(model_class: Any, cls: Any) -> dict[str, Any]:
    """What one settings class recommends for models of this size."""
    if model_class.small_scale:
        return dict(cls.at_small_scale)
    defaults = schema.defaults(cls)
    return {name: defaults[name] for name in cls.tuned_by_model if defaults[name] is not None}


def _class_of(group: str, values: Any) -> Any:
    """The settings class that composed values of a group choose; None where they choose none."""
    if not isinstance(values, Mapping) or values.get("kind") not in registry.kinds(group):
        return None
    return registry.settings_class(group, values["kind"])


def _usable_tuned(tuned: Any, name: str, cls: Any, problems: list[str]) -> dict[str, Any]:
    """The settings that a model gives an algorithm, or `rollout`, without those that are wrong."""
    # where `tuned` is no mapping, the model's own section reports it
    settings = tuned.get(name) if isinstance(tuned, Mapping) else None
    hints = schema.field_types(cls)
    usable = {}
    for key, value in (settings or {}).items():
        path = f"model.tuned.{name}.{key}"
        if key not in cls.tuned_by_model:
            problems.append(f"{path} is not left to the model{schema.did_you_mean(key, cls.tuned_by_model)}")
        elif schema.convert(hints[key], value, path, problems)[0]:
            usable[key] = value
    return usable


def _completed(root: Config) -> Config:
    """Fill in what follows from other sections: the data's seed, so that upstream stages read the same data, and what
    the algorithm leaves open."""
    algorithm = root.algorithm.completed(root)
    if root.seed < 0:
        return dataclasses.replace(root, algorithm=algorithm)  # `_cross_check` refuses it
    return dataclasses.replace(root, algorithm=algorithm, data=root.data.of_run(root.seed))


def _cross_check(root: Config) -> list[str]:
    """Rules between sections."""
    algorithm = root.algorithm
    kind = registry.kind_of("algorithm", algorithm)
    problems = []
    if root.seed < 0:
        problems.append(f"seed={root.seed} is negative; use 0 or more")
    if not root.outputs.strip():
        problems.append("outputs is empty; write outputs=FOLDER, or outputs=. for the working directory")
    for role in algorithm.required_needs:
        if not root.needs.get(role):
            problems.append(f"needs.{role} is not set; algorithm={kind} starts from it, e.g. +needs.{role}=sft")
    scoring = sorted(root.reward.roles) if "reward" in algorithm.uses else ()
    allowed = (*algorithm.required_needs, *algorithm.optional_needs, *scoring)
    allowed += ("gold", "judge") if algorithm.measures_gold else ()
    allowed += tuple(spare_roles()) if "reward" in algorithm.uses else ()
    for role in root.needs:
        is_allowed = role in allowed or algorithm.any_needs or (bool(algorithm.trains_on) and is_corpus_role(role))
        if not is_allowed:
            problems.append(f"needs.{role} is not used by algorithm={kind}{schema.did_you_mean(role, allowed)}")
    problems += _data_problems(root)
    problems += _gold_problems(root)
    problems += _mixture_problems(root)
    problems += _agent_problems(root) if root.runs_agents else []
    if algorithm.trains_on_reward or algorithm.reads_reward:
        problems += _missing_roles(root)
    problems += algorithm.contradictions(root)
    has_no_policy = "policy" in algorithm.optional_needs and not root.needs.get("policy")
    starts_from_scratch = algorithm.makes_model and has_no_policy
    if starts_from_scratch and registry.kind_of("model", root.model) == "scratch" and root.model.lora.rank:
        problems.append(
            f"model.lora.rank={root.model.lora.rank} trains an adapter on a model that is there already, and a new one "
            "is random: name one in needs.policy, or train all of it with model.lora.rank=0 (in a stage before this "
            "run's: stages.RECIPE.model.lora.rank=0)"
        )
    selection = getattr(algorithm, "selection", None)
    if selection is not None and selection.reads_margins and not root.needs.get("margins"):
        problems.append(f"algorithm.selection.by={selection.by} reads margins; name them: needs.margins=pair_margins")
    problems += _sharding_problems(root)
    path = str(getattr(root.model, "path", ""))
    if path.startswith(("/", "./", "../", "~")) and not Path(path).expanduser().is_dir():
        problems.append(f"model.path={path}: there is no such folder; write one, or a hub id such as gpt2")
    if root.engine != "native":
        problems += import_module(TRL_OPTIONS).problems(root)
    elif registry.kind_of("rollout", root.rollout) == "vllm":
        vllm: Any = root.rollout
        problems += vllm.native_problems(root)
    positions = getattr(root.model, "max_positions", None)
    if positions:
        lengths = {"algorithm.max_length": getattr(algorithm, "max_length", None) or 0}
        if "rollout" in algorithm.uses:
            episode_tokens = root.rollout.max_prompt_tokens + root.rollout.most_tokens(root.data.max_turns)
            setting = "max_new_tokens" if root.data.max_turns == 1 else "max_episode_tokens"
            lengths[f"rollout.max_prompt_tokens + rollout.{setting}"] = episode_tokens
        problems += [
            f"{name}={tokens} does not fit model.max_positions={positions}; lower it or raise model.max_positions"
            for name, tokens in lengths.items()
            if tokens > positions
        ]
    return problems


def _data_problems(root: Config) -> list[str]:
    """What the algorithm or the reward needs of the data and does not find there."""
    algorithm = root.algorithm
    kind = registry.kind_of("algorithm", algorithm)
    problems = []
    data_kind = registry.kind_of("data", root.data)
    reward_kinds = {registry.kind_of("reward", term) for term in root.reward.terms.values()}
    problems += _audio_problems(root, kind, data_kind)
    if "gold" in reward_kinds and not root.data.true_reward:
        problems.append("reward=gold needs a world whose true reward is known; use data=mini_hh, or reward=bt")
    if "verifier" in reward_kinds and not root.data.answers:
        problems.append("reward=verifier needs data with answers to check; use data=arithmetic or data=gsm8k")
    problems += _verifier_problems(root)
    problems += _speech_problems(root, data_kind)
    if root.evaluation.pass_at and "evaluation" in algorithm.uses and not _knows_correct(root):
        problems.append(
            f"evaluation.pass_at={list(root.evaluation.pass_at)} needs replies that can be checked; use data with "
            "answers (data=arithmetic, data=gsm8k), name a verifier (data.verifier=…), or leave it out"
        )
    for name in ("environment", "tool_calls"):
        if name in reward_kinds and "reward" in algorithm.uses and root.data.max_turns == 1:
            problems.append(f"reward={name}: data={data_kind} has no environment; replies to it are scored as text")
    if root.data.max_turns > 1 and not algorithm.takes_turns:
        problems.append(
            f"algorithm={kind} works with single replies, and data={data_kind} answers them; use algorithm=grpo or ppo"
        )
    if root.data.max_turns > 1 and root.engine != "native":
        problems.append(
            f"engine={root.engine} samples single replies, and data={data_kind} answers them; use engine=native"
        )
    if root.asks_judge and root.judge.reads_truth:
        problems += _simulated_judge_problems(root, data_kind)
    if getattr(algorithm, "needs_answers", False) and not root.data.answers:
        problems.append(f"algorithm={kind} needs data with answers to check; use data=arithmetic or data=gsm8k")
    takes_unpaired = algorithm.takes_unpaired and root.data.unpaired
    if algorithm.needs_preferences and not root.data.preferences and not takes_unpaired:
        problems.append(_no_pairs(kind, data_kind, root))
    if algorithm.makes_model and getattr(root.data, "holds_out_all", False):
        problems.append(
            f"algorithm={kind} trains, and data.test_fraction=1 holds out every row of data={data_kind}; name a "
            "trained model for that role (needs.policy=FOLDER or a hub id), train on other data, or write "
            "data.test_fraction=0.1 to train on nine rows in ten"
        )
    if algorithm.imitates and not root.data.demonstrations:
        problems.append(
            f"algorithm={kind} imitates replies, and data={data_kind} has none to imitate; use data=sft or other data "
            "with demonstrations; a run that only starts from such a stage names a model instead: needs.policy=FOLDER "
            "or a hub id"
        )
    terms = root.reward.terms.items() if "reward" in algorithm.uses else ()
    scaled = [name for name, term in terms if term.standardise == "corpus"]
    if scaled and not root.data.demonstrations:
        problems.append(
            f"reward.terms.{scaled[0]}.standardise=corpus measures the replies of the data, and data={data_kind} has "
            f"none; use reward.terms.{scaled[0]}.standardise=fixed with mean and sd"
        )
    return problems


def _speech_problems(root: Config, data_kind: str) -> list[str]:
    """Streams of a codec with a model of text, the reverse, and models with a scalar head that would read streams."""
    algorithm = root.algorithm
    family = getattr(root.model, "family", None)  # None: a model from elsewhere, whose config says what it is
    if "model" not in algorithm.uses or family is None:
        return []
    if not root.data.audio:
        return [f"model.family=codec says the codes of audio; data={data_kind} is text"] if family == "codec" else []
    if family != "codec":
        return [f"data={data_kind} has the codes of audio, one token each, for a model of codes; use model=codec"]
    has_scalar_head = any(held.outputs for held in algorithm.held(adapter=False)) or hasattr(algorithm, "critic")
    if has_scalar_head:
        kind = registry.kind_of("algorithm", algorithm)
        return [
            f"algorithm={kind} reads replies with a scalar head on a language model, and data={data_kind} is audio; "
            "use algorithm=acoustic_reward for a reward, algorithm=dpo_iterative or grpo for a policy"
        ]
    return []


def _audio_problems(root: Config, algorithm: str, data: str) -> list[str]:
    """Parts of the run that listen to replies which are text, or read replies that are audio."""
    terms = root.reward.terms.values() if "reward" in root.algorithm.uses else ()
    kinds = {registry.kind_of("reward", term): term.reads for term in terms}
    if root.data.audio:
        readers = [
            f"reward={kind} reads replies as text, and those of data={data} are audio; use "
            "reward=[acoustic_rm,intelligibility], or reward=gold where the data's true reward is known"
            for kind, reads in sorted(kinds.items())
            if reads == "text"
        ]
        if not root.data.phones:
            chosen = [f"algorithm={algorithm}", *(f"reward={kind}" for kind in kinds)]
            hearers = [part for part in HEAR_PHONES if part in chosen]
            readers += [
                f"{hearer} hears the phones of a text, which data={data} does not know; use data=speech, or another"
                for hearer in hearers
            ]
        return readers
    listeners = [f"algorithm={algorithm}"] if root.algorithm.needs_audio else []
    listeners += [f"reward={kind}" for kind, reads in sorted(kinds.items()) if reads == "audio"]
    return [
        f"{listener} needs {audible(listener)}: it listens to replies, and those of data={data} are text"
        for listener in listeners
    ]


def _knows_correct(root: Config) -> bool:
    """Whether it may be known of a reply that it is right."""
    return bool(root.data.answers) or root.verifier is not None or root.data.max_turns > 1


def _verifier_problems(root: Config) -> list[str]:
    """A `data.verifier` that is none, and several verifiers of which none is chosen to measure."""
    kind = getattr(root.data, "verifier", None)
    terms_by_kind: dict[str, Any] = {name: registry.settings_class("reward", name) for name in registry.kinds("reward")}
    known = [name for name, cls in terms_by_kind.items() if cls.verifies]
    if kind is not None:
        return [] if kind in known else [f"data.verifier={kind} is no verifier; use one of {', '.join(known)}, or null"]
    terms = root.reward.terms.items() if "reward" in root.algorithm.uses else ()
    verifiers = [name for name, term in terms if term.verifies]
    if len(verifiers) > 1 and hasattr(root.data, "verifier"):
        choice = "|".join(registry.kind_of("reward", root.reward.terms[name]) for name in verifiers)
        return [f"reward={','.join(verifiers)}: several verifiers; say which one measures: data.verifier={choice}"]
    return []


def _gold_problems(root: Config) -> list[str]:
    """Why the model in `needs.gold`, or the judge (`needs.judge`), cannot say what replies are worth in this run."""
    sources = [role for role in ("gold", "judge") if root.needs.get(role)] if root.algorithm.measures_gold else []
    if not sources:
        return []
    written = " and ".join(f"needs.{role}" for role in sources)
    data = registry.kind_of("data", root.data)
    problems = []
    if len(sources) > 1:
        problems.append(f"{written} are two golds; leave one of them out")
    if root.data.true_reward:
        problems.append(
            f"{written}: data={data} has gold of its own, the true reward of its world; leave {written} out, or use "
            "other data, such as data=hh_rlhf"
        )
    if root.data.max_turns > 1:
        problems.append(f"{written} scores single replies, and data={data} answers them; leave it out")
    if root.gold_rubric and root.reward_asks_judge:
        problems.append(
            "needs.judge: reward=judge asks the judge that is there to check it; name a reward model for one of them: "
            "needs.gold=FOLDER, or reward=bt"
        )
    return problems


def _mixture_problems(root: Config) -> list[str]:
    """Made corpora that this run cannot train on, and shares of sources that it does not have."""
    algorithm, roles = root.algorithm, root.corpus_roles
    if not roles:
        if root.mixture == Mixture():
            return []
        return ["mixture is read where needs names a made corpus; name one, e.g. +needs.corpus=cai_preferences"]
    problems = []
    if root.mixture.vocabulary == "all" and root.needs.get("policy"):
        problems.append(
            "mixture.vocabulary=all: the model that this stage starts from has its vocabulary; write it for the stage "
            "that makes a model from scratch, e.g. stages.sft_mixed.mixture.vocabulary=all"
        )
    sources = ("data", *roles)
    for name in root.mixture.shares or {}:
        if name not in sources:
            hint = schema.did_you_mean(name, sources)
            problems.append(f"mixture.shares.{name} is no source of this run; it has {', '.join(sources)}{hint}")
    if root.data.max_turns > 1 and algorithm.trains_on == "prompts":
        problems.append("needs.corpus: the tasks of data that answer the policy come from their environment alone")
    if algorithm.trains_on == "prompts" and root.data.answers:
        problems.append("needs.corpus: made prompts have no answer that a verifier could check; use other data")
    return problems


def _simulated_judge_problems(root: Config, data: str) -> list[str]:
    """Why a judge who answers from the truth of a world cannot answer with these data."""
    judge = registry.kind_of("judge", root.judge)
    others = "another judge: judge=anthropic, judge=openai_compatible or judge=local"
    if not root.data.true_reward:
        return [f"judge={judge}: data={data} has no simulated judge; use data=mini_hh, or {others}"]
    return []


def _no_pairs(algorithm: str, data: str, root: Config) -> str:
    """Why the data are no preference pairs, and what to use."""
    if root.data.unpaired:
        return (
            f"algorithm={algorithm} needs preference pairs; data={data} has single replies with a label; use "
            "algorithm=kto, which reads them, or data=pairs"
        )
    has = "demonstrations only" if root.data.demonstrations else "prompts only"
    return f"algorithm={algorithm} needs preference pairs; data={data} has {has}"


def _sharding_problems(root: Config) -> list[str]:
    """Why this run cannot be spread over processes as configured."""
    problems = []
    sharding = registry.kind_of("sharding", root.sharding)
    lora = getattr(root.model, "lora", None)
    if lora and lora.rank and root.sharding.reference == "offload" and sharding != "fsdp":
        problems.append(
            "sharding.reference=offload: the reference of an adapter is its own base, which stays on the device and "
            "takes no memory of its own; use sharding.reference=resident"
        )
    if root.engine != "native" and sharding != "none":
        problems.append(f"engine={root.engine} trains in one process here; use sharding=none, or engine=native")
    if getattr(root.sharding, "sampling", "whole") == "block" and registry.kind_of("rollout", root.rollout) != "local":
        problems.append(
            "sharding.sampling=block is how the lab's own sampler reads a divided policy, and vLLM samples from a "
            "model of its own; use sharding.sampling=whole, or rollout=local"
        )
    divides = sharding in ("fsdp", "zero")
    if divides and any(root.model.stored(role) != "float32" for role in ("policy", "reference")):
        problems.append(
            f"model.weights with sharding={sharding}: policies and references are divided from float32 weights there "
            "(with runtime.dtype=bfloat16 passes take half of that); write model.weights_of={reward: bfloat16} for "
            "reward models, or use sharding=none or ddp"
        )
    problems += _reference_problems(root)
    if divides and getattr(root.algorithm, "optimizer", None) == "adamw_8bit":
        problems.append(
            "algorithm.optimizer=adamw_8bit keeps moments in blocks of whole matrices, and FSDP and DeepSpeed divide "
            "moments between processes in any case; use algorithm.optimizer=adamw, or sharding=none or ddp"
        )
    if sharding == "zero" and getattr(root.algorithm, "optimizer", None) == "muon":
        problems.append(
            "algorithm.optimizer=muon orthogonalises whole matrices, and DeepSpeed gives an optimiser pieces of them; "
            "use algorithm.optimizer=adamw (with an algorithm.lr for it), or sharding=ddp, fsdp_grad_op or fsdp_full"
        )
    return problems


def _reference_problems(root: Config) -> list[str]:
    """Why a reference cannot be stored as configured beside a policy that is trained as a whole."""
    holds_reference = any(model.reference for model in root.algorithm.held(adapter=False))
    if root.model.lora.rank or not holds_reference or not root.algorithm.makes_model:
        return []
    stored = root.model.stored("reference")
    if stored == "float32" or (stored == "bfloat16" and root.runtime.dtype == "bfloat16"):
        return []
    others = "reward models alone: model.weights_of={reward: bfloat16}"
    if stored == "bfloat16":
        others += "; bfloat16 also with runtime.dtype=bfloat16"
    return [
        f"model.weights={stored}: the policy is trained as a whole in {root.runtime.dtype}, and a reference that "
        "computes otherwise differs from it before the first step; train an adapter (model.lora.rank=16), or write "
        f"model.weights=float32 ({others})"
    ]


def _agent_problems(root: Config) -> list[str]:
    """Why the agents cannot speak through their model as configured."""
    agent = root.agent
    problems = []
    if not agent.asks_model:
        return []
    if agent.llm == "local" and not root.needs.get("policy"):
        problems.append(
            "agent.llm=local: the agents speak through needs.policy, which is not set; name one, e.g. "
            "+needs.policy=sft, or a service: agent.llm=anthropic or agent.llm=openai_compatible"
        )
    if agent.llm == "local" and agent.calls == "native" and registry.kind_of("model", root.model) == "scratch":
        problems.append(
            "agent.calls=native: a model made from scratch has no chat template that takes tools; use agent.calls=text"
        )
    if agent.llm == "anthropic" and agent.temperature is not None:
        problems.append("agent.temperature: agent.llm=anthropic samples at the service's own; leave it out")
    return problems


def _missing_roles(root: Config) -> list[str]:
    """Reward models that terms of the reward read and `needs` does not name."""
    return [
        f"needs.{role} is not set; the chosen reward reads it (or choose another: reward=gold)"
        for role in sorted(root.reward.roles)
        if not root.needs.get(role)
    ]


def to_values(config: Config) -> dict[str, Any]:
    """Plain YAML values of a checked config; `check(to_values(c))` gives `c` again."""
    values = schema.plain(config)
    for group in GROUPS:
        if group not in ("reward", "agent"):
            values[group] = {"kind": registry.kind_of(group, getattr(config, group)), **values[group]}
    for name, term in config.reward.terms.items():
        term_values = values["reward"]["terms"][name]
        values["reward"]["terms"][name] = {"kind": registry.kind_of("reward", term), **term_values}
    for name, program in config.agent.programs.items():
        program_values = values["agent"]["programs"][name]
        values["agent"]["programs"][name] = {"kind": registry.kind_of("agent", program), **program_values}
    return values
