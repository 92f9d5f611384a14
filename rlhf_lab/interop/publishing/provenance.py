"""What a run's model was made of, from manifest.json, config.yaml and result.json of the run and of those before it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rlhf_lab.config import registry, schema
from rlhf_lab.data.reading import HUB_ID, SUFFIXES
from rlhf_lab.interop.publishing.leaks import without_local_paths
from rlhf_lab.models.model_files import ADAPTER, model_identity
from rlhf_lab.results.rundir import Run, is_run, read_run
from rlhf_lab.training.settings import StageSettings

ALWAYS_TOLD = ("optimizer", "lr", "epochs", "batch_size", "max_length", "beta")
"""Settings of an algorithm that a card tells also where they have their default."""


@dataclass(frozen=True)
class Base:
    """What the first stage of a chain started from.

    Attributes:
        hub_id: `owner/name`; empty for a local folder or a model from scratch.
        words: the same in a sentence, with revision or identity.
    """

    hub_id: str
    words: str


class Provenance:
    """A run and the runs before it.

    Args:
        folder: a completed run directory with a model.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.run: Run = read_run(folder)
        self.settings: Mapping[str, Any] = self.run.settings

    @property
    def algorithm(self) -> str:
        return str(self._section("algorithm").get("kind", ""))

    @cached_property
    def algorithm_class(self) -> type[StageSettings]:
        cls: Any = registry.settings_class("algorithm", self.algorithm)
        return cls

    @property
    def model_folder(self) -> Path:
        return self.folder / "model"

    @property
    def has_adapter(self) -> bool:
        return (self.model_folder / "adapter" / ADAPTER).is_file()

    @cached_property
    def chain(self) -> list[Run]:
        """The stages that trained the policy, the first one first; this run is the last. Stages not at hand are left
        out."""
        runs = [self.run]
        while (before := self._policy_before(runs[0])) is not None:
            runs.insert(0, before)
        return runs

    def _policy_before(self, run: Run) -> Run | None:
        need = (run.manifest.get("needs") or {}).get("policy") or {}
        if not need.get("recipe"):
            return None
        written = Path(str(need["dir"]))
        # the folder as the command saw it, or beside this run where the store was moved
        places = (written, run.path.parent / written.name)
        found = next((place for place in places if is_run(place)), None)
        return read_run(found) if found else None

    @cached_property
    def base(self) -> Base:
        """What the first stage of the chain started from."""
        first = self.chain[0]
        need = (first.manifest.get("needs") or {}).get("policy")
        if need and need.get("recipe"):  # that stage's directory is gone
            return Base("", f"the stage {need['recipe']} (key {need['key']}), whose directory is not at hand")
        if need:
            return _base_of(str(need["dir"]), None, str(need.get("key") or ""))
        model = first.settings.get("model") or {}
        if model.get("path"):
            return _base_of(str(model["path"]), model.get("revision"), "")
        size = ", ".join(f"{name} {model[name]}" for name in ("layers", "hidden", "heads") if name in model)
        return Base("", f"none; {model.get('family', 'a model')} from random weights ({size})")

    def stages(self) -> Iterator[tuple[str, str, str]]:
        """(recipe, algorithm, key) of each stage of the chain."""
        for run in self.chain:
            algorithm = (run.settings.get("algorithm") or {}).get("kind", "")
            yield run.recipe, str(algorithm), str(run.manifest.get("key", ""))

    @property
    def code(self) -> str:
        """The version, and the commit where there was a checkout."""
        version = (self.run.manifest.get("versions") or {}).get("rlhf_lab") or ""
        sha = self.run.manifest.get("git_sha")
        return f"{version} (git {sha})" if sha and version else str(version)

    @property
    def command(self) -> str:
        return without_local_paths(str(self.run.manifest.get("command") or ""))

    @property
    def fingerprint(self) -> str:
        return str((self.run.manifest.get("data") or {}).get("fingerprint") or "")

    @property
    def data_name(self) -> str:
        return str((self.run.manifest.get("data") or {}).get("name") or "")

    @cached_property
    def data_sources(self) -> list[str]:
        """Where the data come from: hub ids as they are, local files by name alone; empty for embedded worlds."""
        data = self._section("data")
        parts = [data, *(data.get("sources") or {}).values()]
        paths = [str(part[name]) for part in parts for name in ("path", "test_path") if part.get(name)]
        return [path if _hub_data(path) else Path(path).name for path in dict.fromkeys(paths)]

    @property
    def hub_data_sets(self) -> list[str]:
        return [name for source in self.data_sources if (name := _hub_data(source))]

    @property
    def reward_terms(self) -> list[str]:
        """The terms that the policy was trained on in any stage, in words; empty where no reward was trained on."""
        words = []
        for run in self.chain:
            where = "" if run is self.run else f", in the stage `{run.recipe}`"
            words += [f"{term}{where}" for term in _reward_terms_of(run)]
        return words

    def main_settings(self) -> dict[str, Any]:
        """Dotted setting → value: what is always told, and what differs from the default of its class."""
        defaults = schema.defaults(self.algorithm_class)
        told: dict[str, Any] = {}
        for name, value in self._section("algorithm").items():
            differs = value != defaults.get(name)
            if name != "kind" and value is not None and (differs or name in ALWAYS_TOLD):
                told[f"algorithm.{name}"] = value
        if "rollout" in self.algorithm_class.uses:
            rollout = self._section("rollout")
            told |= {f"rollout.{name}": rollout[name] for name in ("temperature", "max_new_tokens") if name in rollout}
        lora = self._section("model").get("lora") or {}
        if lora.get("rank"):
            told |= {f"model.lora.{name}": lora[name] for name in ("rank", "alpha") if name in lora}
        told["runtime.dtype"] = self._section("runtime").get("dtype", "")
        told["seed"] = self.settings.get("seed")
        return {name: _portable(value) for name, value in told.items()}

    def _section(self, name: str) -> Mapping[str, Any]:
        section = self.settings.get(name)
        return section if isinstance(section, Mapping) else {}


def _reward_terms_of(run: Run) -> list[str]:
    """The terms of one stage's reward, if its policy was trained on them."""
    algorithm: Any = registry.settings_class("algorithm", str((run.settings.get("algorithm") or {}).get("kind")))
    # iterative DPO ranks its samples by the reward that it reads
    if not (algorithm.trains_on_reward or algorithm.reads_reward):
        return []
    reward = run.settings.get("reward") or {}
    weights = reward.get("weights")
    needs = run.manifest.get("needs") or {}
    words = []
    for name, term in (reward.get("terms") or {}).items():
        weight = term.get("weight", 1.0) if weights is None else weights.get(name, 0.0)
        cls: Any = registry.settings_class("reward", term["kind"])
        need = needs.get(cls.needs_role) if cls.needs_role else None
        source = f", from {_need_words(need)}" if need else ""
        words.append(f"`{name}` ({term['kind']}), weight {weight:g}{source}")
    return words


def _portable(value: Any) -> Any:
    return without_local_paths(value) if isinstance(value, str) else value


def _need_words(need: Mapping[str, Any]) -> str:
    if need.get("recipe"):
        return f"the recipe `{need['recipe']}` (key {need['key']})"
    return _base_of(str(need["dir"]), None, str(need.get("key") or "")).words


def _base_of(source: str, revision: str | None, identity: str) -> Base:
    """A model outside the lab: a hub id, or a local folder by its name and a hash of its content."""
    is_local = Path(source).expanduser().is_dir() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source)
    if is_local:
        content = identity or (model_identity(source) if Path(source).is_dir() else "unknown")
        return Base("", f"a local folder `{Path(source).name}` (identity {content})")
    at = f" at revision {revision}" if revision else ", revision not pinned"
    return Base(source, f"[{source}](https://huggingface.co/{source}){at}")


def _hub_data(path: str) -> str:
    """The hub id of a data source; empty for files."""
    match = HUB_ID.fullmatch(path)
    is_local = path.startswith((".", "/", "~")) or "/" not in path or path.endswith(SUFFIXES) or Path(path).exists()
    return "" if is_local or match is None else str(match["id"])
