"""Request to publish a run, and the origin of the model of the run.

The origin comes from manifest.json, config.yaml and result.json of the run and of the runs before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rlhf_lab.config import registry, schema
from rlhf_lab.data.reading import HUB_ID, SUFFIXES
from rlhf_lab.interop.publishing.leaks import without_local_paths
from rlhf_lab.models.model_files import ADAPTER, model_identity
from rlhf_lab.results.rundir import StoredRun, input_directory, read_run
from rlhf_lab.training.settings import StageSettings

ALWAYS_TOLD = ("optimizer", "lr", "epochs", "batch_size", "max_length", "beta")
"""Settings of an algorithm that a card lists even if they have their default value."""
HUB = "hub:"
Dtype = Literal["saved", "bfloat16"]


@dataclass(frozen=True)
class PublishRequest:
    """Request to publish a model.

    Attributes:
        run: the run, as the user named it.
        to: a directory that does not exist yet, or `hub:OWNER/NAME`.
        adapter: True to publish only the adapter.
        base: hub id of the base, if the run has it as a local directory.
        despite: accepted reasons against publishing, names of `refusals.DESPITE`.
        public: True if a hub repository may be public.
        license: identifier of the license on the hub; empty for none.
        gate: a suite that the run has to pass; empty for none.
        gate_run: the run that evaluated the model for the gate; empty means the run itself.
    """

    run: str
    to: str
    dtype: Dtype = "saved"
    adapter: bool = False
    base: str = ""
    despite: Sequence[str] = ()
    public: bool = False
    license: str = ""
    gate: str = ""
    gate_run: str = ""

    @property
    def on_hub(self) -> bool:
        return self.to.startswith(HUB)

    @property
    def name(self) -> str:
        """Name of the published model: name of a directory, or `owner/name`."""
        return self.to.removeprefix(HUB) if self.on_hub else Path(self.to).name


@dataclass(frozen=True)
class Base:
    """Starting point of the first stage of a chain.

    Attributes:
        hub_id: `owner/name`; empty for a local directory or a model from scratch.
        words: description for a sentence, with revision or identity.
    """

    hub_id: str
    words: str


class PublishedModel:
    """A run and the runs before it.

    Args:
        directory: a completed run directory with a model.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.run: StoredRun = read_run(directory)
        self.settings: Mapping[str, Any] = self.run.settings

    @property
    def algorithm(self) -> str:
        return str(self._section("algorithm").get("kind", ""))

    @cached_property
    def algorithm_class(self) -> type[StageSettings]:
        cls: Any = registry.settings_class("algorithm", self.algorithm)
        return cls

    @property
    def model_dir(self) -> Path:
        return self.directory / "model"

    @property
    def has_adapter(self) -> bool:
        return (self.model_dir / "adapter" / ADAPTER).is_file()

    @cached_property
    def chain(self) -> list[StoredRun]:
        """Stages that trained the policy, in order; this run is the last. Missing run directories are left out."""
        runs = [self.run]
        # Each stage names the run of its policy, so the chain is followed backwards.
        while (before := self._policy_before(runs[0])) is not None:
            runs.insert(0, before)
        return runs

    def _policy_before(self, run: StoredRun) -> StoredRun | None:
        need = (run.manifest.get("needs") or {}).get("policy") or {}
        directory = input_directory(run.path, need)
        return read_run(directory) if directory else None

    @cached_property
    def base(self) -> Base:
        """Starting point of the first stage of the chain."""
        first = self.chain[0]
        need = (first.manifest.get("needs") or {}).get("policy")
        if need and need.get(
            "recipe"
        ):  # the directory of an even earlier stage is missing, so the chain starts too late
            stage = f"{need['recipe']} (key {need['key']})"
            return Base("", f"the stage {stage}, whose directory is missing")
        if need:
            identity = str(need.get("key") or "")
            return _base_of(str(need["dir"]), None, identity)
        model = first.settings.get("model") or {}
        if model.get("path"):
            return _base_of(str(model["path"]), model.get("revision"), "")
        sizes = [f"{name} {model[name]}" for name in ("layers", "hidden", "heads") if name in model]
        family = model.get("family", "a model")
        return Base("", f"none; {family} from random weights ({', '.join(sizes)})")

    def stages(self) -> Iterator[tuple[str, str, str]]:
        """Yield (recipe, algorithm, key) of each stage of the chain."""
        for run in self.chain:
            algorithm = (run.settings.get("algorithm") or {}).get("kind", "")
            key = run.manifest.get("key", "")
            yield run.recipe, str(algorithm), str(key)

    @property
    def code(self) -> str:
        """Version of the code, and the commit if it was a checkout."""
        versions = self.run.manifest.get("versions") or {}
        version = versions.get("rlhf_lab") or ""
        sha = self.run.manifest.get("git_sha")
        if sha and version:
            return f"{version} (git {sha})"
        return str(version)

    @property
    def command(self) -> str:
        return without_local_paths(str(self.run.manifest.get("command") or ""))

    @property
    def fingerprint(self) -> str:
        return str(self._manifest_data.get("fingerprint") or "")

    @property
    def data_name(self) -> str:
        return str(self._manifest_data.get("name") or "")

    @property
    def _manifest_data(self) -> Mapping[str, Any]:
        data: Mapping[str, Any] = self.run.manifest.get("data") or {}
        return data

    @cached_property
    def data_sources(self) -> list[str]:
        """Sources of the data: hub ids, and the names of local files without directories; empty for built-in worlds."""
        data = self._section("data")
        # A mixture has several sources; any other data section is its own only source.
        sections = [data, *(data.get("sources") or {}).values()]
        values = [section.get(name) for section in sections for name in ("path", "test_path")]
        paths = [str(value) for value in values if value]
        distinct = dict.fromkeys(paths)
        return [path if _hub_data(path) else Path(path).name for path in distinct]

    @property
    def hub_data_sets(self) -> list[str]:
        hub_ids = map(_hub_data, self.data_sources)
        return [hub_id for hub_id in hub_ids if hub_id]

    @property
    def reward_terms(self) -> list[str]:
        """Descriptions of the reward terms that any stage trained the policy on; empty if there were none."""
        words = []
        for run in self.chain:
            where = "" if run is self.run else f", in the stage `{run.recipe}`"
            words += [f"{term}{where}" for term in _reward_terms_of(run)]
        return words

    def main_settings(self) -> dict[str, Any]:
        """Return the settings for the card: those that are always listed, and those that differ from their default."""
        defaults = schema.defaults(self.algorithm_class)
        stated: dict[str, Any] = {}
        for name, value in self._section("algorithm").items():
            # The card states the kind elsewhere, and null means that a setting is unused.
            if name == "kind" or value is None:
                continue
            if value != defaults.get(name) or name in ALWAYS_TOLD:
                stated[f"algorithm.{name}"] = value
        if "rollout" in self.algorithm_class.inputs.sections:
            rollout = self._section("rollout")
            stated |= _selected("rollout", rollout, ("temperature", "max_new_tokens"))
        lora = self._section("model").get("lora") or {}
        if lora.get("rank"):
            stated |= _selected("model.lora", lora, ("rank", "alpha"))
        stated["runtime.dtype"] = self._section("runtime").get("dtype", "")
        stated["seed"] = self.settings.get("seed")
        return {name: _portable(value) for name, value in stated.items()}

    def _section(self, name: str) -> Mapping[str, Any]:
        section = self.settings.get(name)
        return section if isinstance(section, Mapping) else {}


def _selected(section: str, values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {f"{section}.{name}": values[name] for name in names if name in values}


def _reward_terms_of(run: StoredRun) -> list[str]:
    """Return descriptions of the terms of one stage's reward, if its policy was trained on them."""
    kind = (run.settings.get("algorithm") or {}).get("kind")
    algorithm: Any = registry.settings_class("algorithm", str(kind))
    # Iterative DPO does not maximise the reward but ranks its samples by it, which also counts as training on it.
    if not (algorithm.reward_use.trains_policy or algorithm.reward_use.scores):
        return []
    reward = run.settings.get("reward") or {}
    weights = reward.get("weights")
    needs = run.manifest.get("needs") or {}
    words = []
    for name, term in (reward.get("terms") or {}).items():
        # Weights of the section, if there are any, replace those of the terms.
        weight = term.get("weight", 1.0) if weights is None else weights.get(name, 0.0)
        text = f"`{name}` ({term['kind']}), weight {weight:g}"
        cls: Any = registry.settings_class("reward", term["kind"])
        need = needs.get(cls.needs_role) if cls.needs_role else None
        if need:
            text += f", from {_need_words(need)}"
        words.append(text)
    return words


def _portable(value: Any) -> Any:
    return without_local_paths(value) if isinstance(value, str) else value


def _need_words(need: Mapping[str, Any]) -> str:
    if need.get("recipe"):
        return f"the recipe `{need['recipe']}` (key {need['key']})"
    identity = str(need.get("key") or "")
    return _base_of(str(need["dir"]), None, identity).words


def _base_of(source: str, revision: str | None, identity: str) -> Base:
    """Describe a model from outside: by its hub id, or by the name and content hash of a local directory."""
    is_directory = Path(source).expanduser().is_dir()
    is_hub_id = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) is not None
    if is_directory or not is_hub_id:
        # A directory may have been deleted since; without a stored identity its content is then unknown.
        content = identity or (model_identity(source) if Path(source).is_dir() else "unknown")
        return Base("", f"a local directory `{Path(source).name}` (identity {content})")
    at = f" at revision {revision}" if revision else ", revision not pinned"
    return Base(source, f"[{source}](https://huggingface.co/{source}){at}")


def _hub_data(path: str) -> str:
    """Return the hub id of a data source; empty for files."""
    match = HUB_ID.fullmatch(path)
    is_path = path.startswith((".", "/", "~")) or "/" not in path
    is_file = path.endswith(SUFFIXES) or Path(path).exists()
    if match is None or is_path or is_file:
        return ""
    return str(match["id"])
