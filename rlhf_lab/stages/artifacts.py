"""Stages and their store. A recipe names its inputs, which are loaded from the store or built first.

A stage's key consists of two hashes of everything that affects its result: one of settings, seed, data content and
upstream, and one of the code that computes it (`code_digest.py`). Its directory
`outputs/runs/<algorithm>-<settings>-<code>` is run directory, artifact and resume point in one. It is complete once
result.json says so, which is written last. A second process that needs the same stage waits for the first.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from rlhf_lab import __version__
from rlhf_lab.config import check, compose, inventory, registry, root, schema
from rlhf_lab.config.groups import DataSource
from rlhf_lab.config.overrides import merge, set_value
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json, read_object
from rlhf_lab.core.packs import contributed_objects, named, packs
from rlhf_lab.core.user_code import module_name
from rlhf_lab.data.generated import kind_problem
from rlhf_lab.data.reading import local_files
from rlhf_lab.models import families
from rlhf_lab.models.model_files import input_identity, model_identity
from rlhf_lab.monitoring.settings import is_audited
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.stages.code_digest import Reference, differences, digests

INHERITED = ("seed", "outputs", "stages")
"""Settings, besides sections with `Section.inherited`, that an upstream stage inherits from the run."""

CODE = "code.json"
"""File of a run directory with the version and the digest of every definition that affects the stage's result."""

COMMON_CODE = (Reference("rlhf_lab.models.build", "save_model"), Reference("rlhf_lab.training.loop", "train"))
"""Code that every stage runs, whatever its settings."""

GOLD = "gold"
"""Entry of `needs` for the reward model that provides gold, and key of this model's settings in `stages`."""


@dataclass(frozen=True)
class External:
    """A model directory, a hub id, or the directory of a synthetic corpus in `needs` that this run does not build."""

    source: str

    @property
    def key(self) -> str:
        return self.settings_key

    @cached_property
    def settings_key(self) -> str:
        return input_identity(self.source)

    @property
    def model(self) -> str:
        return self.source

    @property
    def output(self) -> str:
        return self.source


@dataclass(frozen=True)
class Stage:
    recipe: str
    config: root.Config
    needs: Mapping[str, Stage | External]

    @cached_property
    def kind(self) -> str:
        return registry.kind_of("algorithm", self.config.algorithm)

    @property
    def key(self) -> str:
        """Key of the stage's result, e.g. "bfe712521e6f-17a9c0de": settings, then code.

        With `artifacts.code=ignore` it is the key of the stored result that is used for the stage.
        """
        return self.directory.name.removeprefix(f"{self.kind}-")

    @cached_property
    def settings_key(self) -> str:
        """Hash of the settings, seed, data and upstream that affect the stage's result, independent of the code."""
        needs = {role: need.settings_key for role, need in self.needs.items()}
        return _hash({**self._key_material, "needs": needs}, 12)

    @cached_property
    def settings_but_seeds(self) -> str:
        """Hash of the same settings without the seeds: equal for repetitions of a job with another seed."""
        needs = {
            role: need.settings_but_seeds if isinstance(need, Stage) else need.settings_key
            for role, need in self.needs.items()
        }
        return _hash({**_without_seeds(self._key_material), "needs": needs}, 12)

    @cached_property
    def _key_material(self) -> dict[str, Any]:
        """The stage's own settings, seed and data that affect its result."""
        values = root.to_values(self.config)
        for section in self.config.sections().values():
            for setting, digest in section.digests(self.config).items():  # the content of a file counts, not its name
                set_value(values, setting, digest)
        used = self.config.algorithm.inputs.sections
        sections = {name: _keyed(getattr(self.config, name), values[name]) for name in used}
        # model.tuned is not hashed, because its effect is already in the algorithm's own settings.
        sections["model"] = _without(_keyed(self.config.model, values["model"]), "tuned", "lora")
        lora = values["model"].get("lora") or {}
        if lora.get("rank"):  # without lr_multiple, which algorithm.lr already contains
            sections["model"]["lora"] = _without(lora, "lr_multiple")
        if values["model"].get("path") and "policy" not in self.needs:
            sections["model"]["content"] = model_identity(values["model"]["path"])
        material: dict[str, Any] = {
            "algorithm": {
                **_paths_to_digests(
                    _without(_keyed(self.config.algorithm, values["algorithm"]), "log_every_steps"),
                    digested=self.config.algorithm.inputs.digested,
                ),
                **self.config.algorithm.contents(),
            },
            "seed": self.config.seed,
            "dtype": self.config.runtime.dtype,
            "data": _data_identity(self.config.data),
            **sections,
        }
        if self.config.corpus_roles:
            material["mixture"] = _keyed(self.config.mixture, values["mixture"])
        for section in self.config.sections().values():
            material |= section.key_material(self.config)
        for name in self.config.artifacts.distinct:
            material[f"distinct/{name}"] = _keyed(getattr(self.config, name), values[name])
        if self.config.engine != "native":  # only then part of the key: docs/design/006-engine-trl.md
            material["engine"] = self.config.engine
        return material

    @cached_property
    def code(self) -> dict[str, str]:
        """Definition → digest, for the code that computes the stage itself."""
        references, files = _code_references(self.config), _code_files(self.config)
        reached = digests(references, files)
        return digests([*references, *_contributed_references(reached)], files)

    @cached_property
    def code_key(self) -> str:
        """Hash of the version of rlhf_lab, the stage's code, and the code of its upstream stages."""
        stages = {role: need for role, need in self.needs.items() if isinstance(need, Stage)}
        upstream = {role: stage.key.rpartition("-")[2] for role, stage in stages.items()}  # the code part of the key
        return _hash([__version__, self.code, upstream], 8)

    @cached_property
    def directory(self) -> Path:
        """Directory of the stage; with `artifacts.code=ignore`, of the latest complete build by any code."""
        directory = self._dir_of(self.code_key)
        if self.config.artifacts.code == "check" or self.config.artifacts.refresh or self._result_in(directory):
            return directory
        return next(filter(self._result_in, self.other_builds()), directory)

    def _dir_of(self, code_key: str) -> Path:
        return Path(self.config.outputs) / "runs" / f"{self.kind}-{self.settings_key}-{code_key}"

    def other_builds(self) -> list[Path]:
        """Return the directories of the same stage built by other code, latest first."""
        pattern = self._dir_of("*")
        builds = set(pattern.parent.glob(pattern.name)) - {self._dir_of(self.code_key)}
        return sorted(builds, key=lambda directory: directory.stat().st_mtime, reverse=True)

    def changed_code(self) -> str | None:
        """Return why a stored result of the same settings cannot be reused; None if nothing is stored."""
        for directory in filter(self._result_in, self.other_builds()):
            stored_code = read_object(directory / CODE)
            if stored_code.get("version") != __version__:
                return f"rlhf_lab {stored_code.get('version')} is now {__version__}"
            changes = differences(stored_code.get("definitions", {}), self.code)
            return ", ".join(changes) + " changed" if changes else "an upstream stage changed"
        return None

    @property
    def model(self) -> str:
        return str(self.directory / "model")

    @property
    def output(self) -> str:
        return str(self.directory)

    def sources(self) -> dict[str, str]:
        """Return entry of `needs` → directory or hub id that this stage reads for it."""
        reads_run_dir = self.config.reads_run_dir
        return {role: need.output if reads_run_dir(role) else need.model for role, need in self.needs.items()}

    def result(self) -> dict[str, Any] | None:
        return self._result_in(self.directory)

    def _result_in(self, directory: Path) -> dict[str, Any] | None:
        result = read_json(directory / "result.json")
        if not isinstance(result, dict) or result.get("status") != "completed":
            return None
        if self.config.algorithm.outputs.model and not (directory / "model").is_dir():
            return None
        return result

    def upstream(self) -> Iterator[Stage]:
        """Yield the upstream stages of this one, each once, in build order; the stage itself comes last."""
        seen: set[Path] = set()
        for need in self.needs.values():
            for stage in need.upstream() if isinstance(need, Stage) else ():
                if stage.directory not in seen:
                    seen.add(stage.directory)
                    yield stage
        yield self


def plan(checked: root.Config, recipe: str) -> Stage:
    """Return the stage graph of a checked config. Raise ConfigError naming the upstream recipe with wrong settings."""
    recipes = inventory.recipes()
    unknown = [name for name in checked.stages if name not in (*recipes, GOLD)]
    if unknown:
        raise ConfigError([f"stages.{name} is not a recipe{schema.did_you_mean(name, recipes)}" for name in unknown])
    checked = checked.replace(needs=_with_models_of_runs(checked))
    needs: dict[str, Stage | External] = {}
    for role, source in checked.needs.items():
        # A recipe may set needs that the chosen reward or agents do not read; these are not built.
        if source is None or checked.leaves_out(role):
            continue
        needs[role] = _plan_need(checked, role, source)
    return Stage(recipe, checked, needs)


def _with_models_of_runs(config: root.Config) -> dict[str, str | None]:
    """Return `needs` with the run directory RUN replaced by RUN/model in roles that read a model."""
    needs = dict(config.needs)
    for role, source in config.needs.items():
        if not source or source in inventory.recipes() or config.reads_run_dir(role):
            continue
        model = Path(source) / "model"
        if (Path(source) / "manifest.json").is_file() and (model / "config.json").is_file():
            needs[role] = str(model)
    return needs


def _plan_need(parent: root.Config, role: str, source: str) -> Stage | External:
    """Return the stage or the external model that `needs.<role>=<source>` of a config names."""
    if source not in inventory.recipes():
        if not Path(source).is_dir() and (source.startswith((".", "/")) or source.count("/") != 1):
            recipes = [name for name in inventory.recipes() if not name.startswith("study/")]
            raise ConfigError(
                f"needs.{role}={source} is neither a recipe ({', '.join(recipes)}), a directory, nor a hub id "
                "(owner/name); run a recipe of your own first, and name the directory of its run"
            )
        return External(source)
    if isinstance(parent.rollout, Vllm):  # it samples only for the requested stage
        parent = parent.replace(rollout=parent.rollout.local())
    parent_values = root.to_values(parent)
    parent_values["artifacts"]["distinct"] = []
    reseeded = (*parent.algorithm.inputs.reseeded, GOLD)
    if role in reseeded:
        # The k-th such role gets a seed 1000·k above the run's, so that it is another policy of the same recipe.
        parent_values["seed"] += 1000 * (1 + reseeded.index(role))
    inherited_sections = [name for name, section in parent.sections().items() if section.inherited]
    inherited = {name: parent_values[name] for name in (*INHERITED, *inherited_sections)}
    values = compose.recipe_values(source) | inherited | {"study": None}
    values = _with_stage_settings(values, parent.stages.get(source, {}))
    # The proxy may use the same recipe as gold, so gold has its own settings in `stages.gold`.
    if role == GOLD:
        values = _with_stage_settings(values, parent.stages.get(GOLD, {}))
    try:
        checked = check.check(values)
        if role in parent.row_roles and (
            problem := kind_problem(checked.algorithm.outputs.rows, parent.row_roles[role])
        ):
            raise ConfigError(problem)
        if not checked.algorithm.outputs.model and not parent.reads_run_dir(role):
            does = "creates data" if checked.algorithm.outputs.rows else "only evaluates"
            raise ConfigError(f"it {does} and saves no model to start from")
        return plan(checked, source)
    except ConfigError as error:
        raise ConfigError([f"stage {source} (needs.{role}): {line}" for line in error.problems]) from None


def _with_stage_settings(values: dict[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stage's values with the settings of `stages.RECIPE`.

    A component of another kind (`stages.agent_pairs.data={kind: tools}`) replaces the inherited one completely, because
    it does not have the same settings.
    """
    replaced = {}
    for section, settings in written.items():
        kind = settings.get("kind") if isinstance(settings, Mapping) else None
        inherited = values.get(section)
        if kind is not None and isinstance(inherited, Mapping) and inherited.get("kind") != kind:
            replaced[section] = {"kind": kind}
    return merge({**values, **replaced}, dict(written))


def _code_references(checked: root.Config) -> list[Reference]:
    """Return the entry points of a stage's code: builders of the components in its config, and their settings."""
    references = [*COMMON_CODE, _class_reference(checked.model)]
    if checked.gold_role:
        references.append(_pack_reference(named("gold_sources")[checked.gold_role]))
    if is_audited(checked):
        references.append(_pack_reference(named("comparers")[checked.reward.audit.labels_from]))
    if checked.verifier is not None:
        verifier = registry.implementation("reward", registry.kind_of("reward", checked.verifier))
        references += [Reference("rlhf_lab.rewards.verifiers.oracle", "verified"), Reference(verifier, "make")]
    for group, settings in checked.parts():
        if group == "model":  # the stage determines the code that builds it; its class is above
            references += _family_references(settings)
            continue
        implementation = registry.implementation(group, registry.kind_of(group, settings))
        references += [Reference(implementation, "build"), _class_reference(settings)]
    # The code of every kind of sharding counts. The choice is not part of the key, because results do not depend on how
    # a step is split between processes.
    references += [Reference(registry.implementation("sharding", kind), "build") for kind in registry.kinds("sharding")]
    if checked.engine != "native":
        references.append(Reference("rlhf_lab.algorithms.trl.engine"))
    return references


def _family_references(model: Any) -> list[Reference]:
    """Return the code of the model's family if a pack adds it: its modules, the new policy and the decoder."""
    family = families.families().get(getattr(model, "family", ""))
    if family is None:
        return []
    return [Reference(family.module), _pack_reference(family.new_policy), _pack_reference(family.decoder)]


def _contributed_references(reached: Collection[str]) -> list[Reference]:
    """Return the functions that packs add to the criteria and reward files that the stage's code reaches."""
    named_in_packs: list[str] = []
    if "rlhf_lab/rewards/criteria/sets.py:criteria_of" in reached:
        named_in_packs += [name for pack in packs() for name in pack.criteria]
    if "rlhf_lab/rewards/criteria/design.py:build" in reached:
        named_in_packs += [name for pack in packs() for name in pack.reward_files.values()]
    return [_pack_reference(reference) for reference in named_in_packs]


def _pack_reference(reference: str) -> Reference:
    module, _, name = reference.partition(":")
    return Reference(module, name)


def _class_reference(settings: object) -> Reference:
    return Reference(type(settings).__module__, type(settings).__qualname__)


def _code_files(checked: root.Config) -> list[Path]:
    """Return the source files of the user's own functions that the stage runs.

    Raises ConfigError for two modules of one name: an import could find either of them.
    """
    files = [file for find_files in contributed_objects("code_files") for file in find_files(checked)]
    by_name: dict[str, Path] = {}
    for file in files:
        other = by_name.setdefault(module_name(file), file)
        if other.resolve() != file.resolve():
            raise ConfigError(
                f"{other} and {file} are both imported as {module_name(file)}, so one of them could take the place of "
                "the other; rename one"
            )
    return files


def _keyed(settings: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of settings that are part of a key.

    Settings in `keyed_if_set` of a class or its bases were added after the first keys. They are omitted if they have
    their default, so that a new setting changes neither a registered claim, which contains `settings_but_seeds`, nor
    the results that `artifacts.code=ignore` finds. Settings in `unkeyed` are always omitted.
    """
    values = _without(values, *getattr(settings, "unkeyed", ()))
    optional = {name for cls in type(settings).__mro__ for name in getattr(cls, "keyed_if_set", ())}
    unchanged = []
    for item in dataclasses.fields(settings):
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        if item.name in optional and getattr(settings, item.name) == default:
            unchanged.append(item.name)
    return _without(values, *unchanged)


def _without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _without_seeds(values: Any) -> Any:
    """Return nested settings without those whose name is "seed" or ends with "_seed"."""
    if not isinstance(values, dict):
        return values
    return {name: _without_seeds(value) for name, value in values.items() if name.rpartition("_")[2] != "seed"}


def _hash(material: object, length: int) -> str:
    return sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()[:length]


def _data_identity(settings: DataSource) -> dict[str, Any]:
    values = {"kind": registry.kind_of("data", settings), **_keyed(settings, dataclasses.asdict(settings))}
    parts = settings.sources_by_name()
    if parts:
        identities = {name: _data_identity(part) for name, part in parts.items()}
        weights = {name: values["sources"][name].get("weight") for name in parts}
        # Of the parts, only weights matter here; their settings are in the identities.
        return {**values, "sources": identities, "weights": weights}
    if settings.world:
        return {**values, "world_version": import_module(settings.world).VERSION}
    return _paths_to_digests(values)


def _paths_to_digests(values: dict[str, Any], digested: Sequence[str] = ()) -> dict[str, Any]:
    """Return settings with digests of local files in place of their paths, except those `digested` elsewhere."""
    for name in ("path", "test_path"):
        files = local_files(values[name]) if values.get(name) and name not in digested else None
        if files:
            digest = sha256()
            for file in files:
                with file.open("rb") as content:
                    while chunk := content.read(2**20):
                        digest.update(chunk)
            values[name] = digest.hexdigest()
    return values


def age(stage: Stage) -> str:
    """Return the age and code of a complete stage: 'built 3 min ago by 0.1.0 (git 1a2b3c4)'."""
    manifest = read_object(stage.directory / "manifest.json")
    seconds = time.time() - (stage.directory / "result.json").stat().st_mtime
    amount = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    if seconds >= 5400:  # 90 min
        amount = f"{seconds / 3600:.0f} h"
    git = f" (git {manifest['git_sha'][:7]})" if manifest.get("git_sha") else ""
    version = manifest.get("versions", {}).get("rlhf_lab", "?")
    other_code = "" if stage.key.endswith(stage.code_key) else ", by other code (artifacts.code=ignore)"
    return f"built {amount} ago by {version}{git}{other_code}"
