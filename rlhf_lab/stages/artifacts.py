"""Stages and the store: a recipe names what it starts from, and that is taken from the store or built first.

A stage's key is two hashes of everything that decides its result: of its settings, seed, data content and upstream,
and of the code that computes it (`code_digest.py`). Its directory `outputs/runs/<algorithm>-<settings>-<code>` is run
directory, artifact and resume point in one. It is complete when result.json says so, which is written last; a second
process that wants the same stage waits for the first.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from rlhf_lab import __version__
from rlhf_lab.config import check, compose, inventory, registry, root, schema
from rlhf_lab.config.groups import DataSource
from rlhf_lab.config.overrides import merge, put
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json
from rlhf_lab.core.packs import contributed
from rlhf_lab.data.made import kind_problem, made_identity
from rlhf_lab.data.reading import local_files
from rlhf_lab.models.model_files import model_identity
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.stages.code_digest import Reference, differences, digests

INHERITED = ("seed", "outputs", "stages")
"""Settings besides the sections with `Section.inherited` that an upstream stage takes over from the run."""

CODE = "code.json"
"""File of a run directory: the version, and the digest of every definition that decides the stage's result."""

COMMON_CODE = (Reference("rlhf_lab.models.build", "save_model"), Reference("rlhf_lab.training.loop", "train"))
"""Code that every stage runs besides what its settings choose."""

GOLD = "gold"
"""Role of the reward model that says what replies are worth, and the key of its own settings in `stages`."""


@dataclass(frozen=True)
class External:
    """A model folder, a hub id, or the folder of a made corpus that `needs` names: not built by this run."""

    source: str

    @property
    def key(self) -> str:
        return self.settings_key

    @cached_property
    def settings_key(self) -> str:
        return made_identity(Path(self.source)) or model_identity(self.source)

    @property
    def model(self) -> str:
        return self.source

    @property
    def output(self) -> str:
        return self.source


@dataclass(frozen=True)
class Stage:
    """One node of the stage graph."""

    recipe: str
    config: root.Config
    needs: Mapping[str, Stage | External]

    @cached_property
    def kind(self) -> str:
        return registry.kind_of("algorithm", self.config.algorithm)

    @property
    def key(self) -> str:
        """What identifies the stage's result, e.g. "bfe712521e6f-17a9c0de": settings, then code.

        With `artifacts.code=ignore` it is that of the stored result which stands for the stage.
        """
        return self.folder.name.removeprefix(f"{self.kind}-")

    @cached_property
    def settings_key(self) -> str:
        """Hash of the settings, seed, data and upstream that decide the stage's result, whatever the code."""
        values = root.to_values(self.config)
        for section in self.config.sections().values():
            for setting, digest in section.digests(self.config).items():  # what a file is called decides nothing
                put(values, setting, digest)
        sections = {name: _keyed(getattr(self.config, name), values[name]) for name in self.config.algorithm.uses}
        # model.tuned is not hashed: what it decided is among the algorithm's own settings.
        sections["model"] = _without(_keyed(self.config.model, values["model"]), "tuned", "lora")
        lora = values["model"].get("lora") or {}
        if lora.get("rank"):  # without lr_multiple, which algorithm.lr already contains
            sections["model"]["lora"] = _without(lora, "lr_multiple")
        if values["model"].get("path") and not self.config.needs.get("policy"):
            sections["model"]["content"] = model_identity(values["model"]["path"])
        material: dict[str, Any] = {
            "algorithm": {
                **_paths_to_digests(
                    _without(_keyed(self.config.algorithm, values["algorithm"]), "log_every_steps"),
                    digested=self.config.algorithm.digested_paths,
                ),
                **self.config.algorithm.contents(),
            },
            "seed": self.config.seed,
            "dtype": self.config.runtime.dtype,
            "data": _data_identity(self.config.data),
            "needs": {role: need.settings_key for role, need in self.needs.items()},
            **sections,
        }
        if self.config.corpus_roles:
            material["mixture"] = _keyed(self.config.mixture, values["mixture"])
        for section in self.config.sections().values():
            material |= section.key_material(self.config)
        for name in self.config.artifacts.distinct:
            material[f"distinct/{name}"] = _keyed(getattr(self.config, name), values[name])
        if self.config.engine != "native":  # in the key only then: docs/design/006-engine-trl.md
            material["engine"] = self.config.engine
        return _hash(material, 12)

    @cached_property
    def code(self) -> dict[str, str]:
        """Definition → digest, of the code that computes the stage itself."""
        return digests(_code_references(self.config), _code_files(self.config))

    @cached_property
    def code_key(self) -> str:
        """Hash of the lab's version, the stage's code, and the code of what it starts from."""
        upstream = {role: need.key.rpartition("-")[2] for role, need in self.needs.items() if isinstance(need, Stage)}
        return _hash([__version__, self.code, upstream], 8)

    @cached_property
    def folder(self) -> Path:
        """The stage's directory; with `artifacts.code=ignore`, that of the latest complete build by other code."""
        folder = self._folder_of(self.code_key)
        if self.config.artifacts.code == "check" or self.config.artifacts.refresh or self._result_in(folder):
            return folder
        return next(filter(self._result_in, self.other_builds()), folder)

    def _folder_of(self, code_key: str) -> Path:
        return Path(self.config.outputs) / "runs" / f"{self.kind}-{self.settings_key}-{code_key}"

    def other_builds(self) -> list[Path]:
        """Directories of the same stage by other code, the latest first."""
        pattern = self._folder_of("*")
        builds = set(pattern.parent.glob(pattern.name)) - {self._folder_of(self.code_key)}
        return sorted(builds, key=lambda folder: folder.stat().st_mtime, reverse=True)

    def changed_code(self) -> str | None:
        """Why a stored result of the same settings cannot be reused; None where nothing is stored."""
        for folder in filter(self._result_in, self.other_builds()):
            stored_code = read_json(folder / CODE) or {}
            if stored_code.get("version") != __version__:
                return f"rlhf_lab {stored_code.get('version')} is now {__version__}"
            changes = differences(stored_code.get("definitions", {}), self.code)
            return ", ".join(changes) + " changed" if changes else "a stage before it is another one"
        return None

    @property
    def model(self) -> str:
        return str(self.folder / "model")

    @property
    def output(self) -> str:
        """What the stage wrote besides a model: its directory."""
        return str(self.folder)

    def sources(self) -> dict[str, str]:
        """Role → the folder or hub id that this stage reads for it."""
        reads_folder = self.config.reads_folder
        return {role: need.output if reads_folder(role) else need.model for role, need in self.needs.items()}

    def result(self) -> dict[str, Any] | None:
        """The stage's result when it is complete, else None."""
        return self._result_in(self.folder)

    def _result_in(self, folder: Path) -> dict[str, Any] | None:
        result = read_json(folder / "result.json")
        if not isinstance(result, dict) or result.get("status") != "completed":
            return None
        if self.config.algorithm.makes_model and not (folder / "model").is_dir():
            return None
        return result

    def upstream(self) -> Iterator[Stage]:
        """The stages this one starts from, each once, in the order in which they are built; itself last."""
        seen: set[Path] = set()
        for need in self.needs.values():
            for stage in need.upstream() if isinstance(need, Stage) else ():
                if stage.folder not in seen:
                    seen.add(stage.folder)
                    yield stage
        yield self


def plan(checked: root.Config, recipe: str) -> Stage:
    """The stage graph of a checked config. Raises ConfigError naming the upstream recipe whose settings are wrong."""
    recipes = inventory.recipes()
    unknown = [name for name in checked.stages if name not in (*recipes, GOLD)]
    if unknown:
        raise ConfigError([f"stages.{name} is not a recipe{schema.did_you_mean(name, recipes)}" for name in unknown])
    needs: dict[str, Stage | External] = {}
    for role, source in checked.needs.items():
        # A recipe may name what the chosen reward, or the chosen agents, do not read: it is not built.
        if source is None or checked.leaves_out(role):
            continue
        needs[role] = _plan_need(checked, role, source)
    return Stage(recipe, checked, needs)


def _plan_need(parent: root.Config, role: str, source: str) -> Stage | External:
    """The stage, or the outside model, that `needs.<role>=<source>` of a config names."""
    if source not in inventory.recipes():
        if not Path(source).is_dir() and (source.startswith((".", "/")) or source.count("/") != 1):
            recipes = [name for name in inventory.recipes() if not name.startswith("study/")]
            raise ConfigError(
                f"needs.{role}={source} is neither a recipe ({', '.join(recipes)}), a folder, nor a hub id (owner/name)"
            )
        return External(source)
    if isinstance(parent.rollout, Vllm):  # vLLM samples for the stage that is asked for, and for none before it
        parent = parent.replace(rollout=parent.rollout.local())
    parent_values = root.to_values(parent)
    parent_values["artifacts"]["distinct"] = []
    reseeded = (*parent.algorithm.reseeded_roles, GOLD)
    if role in reseeded:
        # The k-th such role is built with a seed 1000·k above the run's: another policy of the same recipe.
        parent_values["seed"] += 1000 * (1 + reseeded.index(role))
    names = [*INHERITED, *(name for name, section in parent.sections().items() if section.inherited)]
    inherited = {name: parent_values[name] for name in names}
    values = compose.recipe_values(source) | inherited | {"study": None}
    values = _with_stage_settings(values, parent.stages.get(source, {}))
    if role == GOLD:  # the proxy may be of the same recipe: what is written here is of the gold alone
        values = _with_stage_settings(values, parent.stages.get(GOLD, {}))
    try:
        checked = check.check(values)
        if role in parent.row_roles and (problem := kind_problem(checked.algorithm.makes_rows, parent.row_roles[role])):
            raise ConfigError(problem)
        if not checked.algorithm.makes_model and not parent.reads_folder(role):
            does = "makes data" if checked.algorithm.makes_rows else "only evaluates"
            raise ConfigError(f"it {does} and makes no model to start from")
        return plan(checked, source)
    except ConfigError as error:
        raise ConfigError([f"stage {source} (needs.{role}): {line}" for line in error.problems]) from None


def _with_stage_settings(values: dict[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """A stage's values with what `stages.RECIPE` writes.

    A component of another kind (`stages.agent_pairs.data={kind: tools}`) stands in the place of the one that the stage
    would take over, whose settings are not its own.
    """
    replaced = {}
    for section, settings in written.items():
        kind = settings.get("kind") if isinstance(settings, Mapping) else None
        inherited = values.get(section)
        if kind is not None and isinstance(inherited, Mapping) and inherited.get("kind") != kind:
            replaced[section] = {"kind": kind}
    return merge({**values, **replaced}, dict(written))


def _code_references(checked: root.Config) -> list[Reference]:
    """Where the code of a stage begins: what builds the parts that its config chooses, and their settings."""
    references = [*COMMON_CODE, _class_reference(checked.model)]
    references += [Reference("rlhf_lab.rewards.gold_oracle", "by_model")] if checked.needs.get(GOLD) else []
    for section in checked.sections().values():
        references += [Reference(module, name) for module, name in section.definitions(checked)]
    if checked.verifier is not None:
        kind = registry.kind_of("reward", checked.verifier)
        references.append(Reference("rlhf_lab.rewards.verifiers.oracle", "verified"))
        references.append(Reference(registry.implementation("reward", kind), "make"))
    for group, settings in checked.parts():
        if group == "model":  # which code builds it follows from the stage; its class is above
            continue
        implementation = registry.implementation(group, registry.kind_of(group, settings))
        references += [Reference(implementation, "build"), _class_reference(settings)]
    # The code of every kind of sharding counts, whichever is chosen: the choice itself is not part of a key, because
    # the numbers are the same however a step is divided between processes.
    references += [Reference(registry.implementation("sharding", kind), "build") for kind in registry.kinds("sharding")]
    if checked.engine != "native":
        references.append(Reference("rlhf_lab.algorithms.trl.engine"))
    return references


def _class_reference(settings: object) -> Reference:
    return Reference(type(settings).__module__, type(settings).__qualname__)


def _code_files(checked: root.Config) -> list[Path]:
    """Source files of the user's own functions that the stage runs."""
    return [file for find_files in contributed("code_files") for file in find_files(checked)]


def _keyed(settings: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Values of settings that are part of a key.

    Those of `keyed_if_set` were added when there were keys already: they are left out where they have their default, so
    that results from before keep their key. Those of `unkeyed` are left out whatever they are.
    """
    values = _without(values, *getattr(settings, "unkeyed", ()))
    optional = getattr(settings, "keyed_if_set", ())
    defaults = {item.name: _default(item) for item in dataclasses.fields(settings) if item.name in optional}
    return _without(values, *(name for name, default in defaults.items() if getattr(settings, name) == default))


def _default(item: dataclasses.Field[Any]) -> Any:
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


def _without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _hash(material: object, length: int) -> str:
    return sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()[:length]


def _data_identity(settings: DataSource) -> dict[str, Any]:
    """Settings of the data and the content of its files."""
    values = {"kind": registry.kind_of("data", settings), **_keyed(settings, dataclasses.asdict(settings))}
    parts = settings.sources_by_name()
    if parts:
        identities = {name: _data_identity(part) for name, part in parts.items()}
        weights = {name: values["sources"][name].get("weight") for name in parts}
        return {**values, "sources": identities, "weights": weights}
    if settings.world:
        return {**values, "world_version": import_module(settings.world).VERSION}
    return _paths_to_digests(values)


def _paths_to_digests(values: dict[str, Any], digested: Sequence[str] = ()) -> dict[str, Any]:
    """Settings in which a path of local files is replaced by a digest of their content.

    Args:
        digested: settings that are replaced elsewhere.
    """
    for name in ("path", "test_path"):
        files = local_files(values[name]) if values.get(name) and name not in digested else None
        if files:
            digest = sha256()
            for file in files:
                with open(file, "rb") as content:
                    while chunk := content.read(2**20):
                        digest.update(chunk)
            values[name] = digest.hexdigest()
    return values


def age(stage: Stage) -> str:
    """How long ago a complete stage was built, and by which code: 'built 3 min ago by 0.1.0 (git 1a2b3c4)'."""
    manifest = read_json(stage.folder / "manifest.json") or {}
    seconds = time.time() - (stage.folder / "result.json").stat().st_mtime
    amount = f"{seconds / 3600:.0f} h"
    if seconds < 90:
        amount = f"{seconds:.0f} s"
    elif seconds < 5400:  # up to 90 min
        amount = f"{seconds / 60:.0f} min"
    git = f" (git {manifest['git_sha'][:7]})" if manifest.get("git_sha") else ""
    version = manifest.get("versions", {}).get("rlhf_lab", "?")
    other_code = "" if stage.key.endswith(stage.code_key) else ", by other code (artifacts.code=ignore)"
    return f"built {amount} ago by {version}{git}{other_code}"
