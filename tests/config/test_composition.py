"""Every config file and recipe composes and checks."""

from __future__ import annotations

from functools import cache

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig
from support import check_each, checked, planned

from rlhf_lab.algorithms.policy_gradient.settings import closest_divisor
from rlhf_lab.config import check as config_check
from rlhf_lab.config import command_line, compose, inventory, registry, root, schema
from rlhf_lab.config.overrides import level_name
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.redaction import redacted
from rlhf_lab.memory.plan import plan_stage
from rlhf_lab.stages import artifacts
from rlhf_lab.sweeps.sweep import check_fronts

RECIPES = sorted(inventory.recipes())
CONF = sorted(f"{group}/{option}" for group in registry.groups() for option in inventory.option_files(group))
CHOICES = [name for name in CONF if "/" in name]
NEEDED = {
    "data/speech": ["model=codec"],
    "data/espeak": ["model=codec"],
    "data/speech_small": ["model=codec"],
    "model/codec": ["data=speech_small"],
    "model/parler": ["model.path=owner/name", "algorithm=codec_dpo", "data=speech_small", "reward=acoustic"],
    "algorithm/codec_dpo": ["data=speech_small", "model=codec", "reward=acoustic", "+needs.policy=owner/model"],
    **{
        f"algorithm/{name}": ["data=speech_small", "model=codec"]
        for name in ("acoustic_reward", "wav2vec2_reward", "recogniser")
    },
    "algorithm/tts_preferences": ["data=speech_small", "model=codec", "reward=acoustic", "+needs.policy=owner/model"],
    "algorithm/safety": ["+needs.reference=owner/model"],
    "algorithm/eval_suite": ["+needs.policy=owner/model", "+needs.safety=safety_eval"],
    "model/hf": ["model.path=owner/name"],
    "data/humaneval": ["algorithm=compare", "+needs.reference=owner/model"],  # nothing trains on it
    "data/sft": ["data.path=rows.jsonl"],
    "data/environment": [
        *("data.environment=own.py:Own", "rollout.max_episode_tokens=64"),
        *("algorithm=grpo", "+needs.policy=owner/model", "reward=environment"),
    ],
    "data/verifiable": ["data.path=rows.jsonl", "data.solution=solution"],
    **{
        f"data/{name}": ["data.path=rows.jsonl", "algorithm=grpo", "+needs.policy=owner/model", "reward=length"]
        for name in ("prompts", "xstest", "mt_bench")
    },
    "data/unpaired": ["data.path=rows.jsonl", "algorithm=kto", "+needs.policy=owner/model", "reward=length"],
    "data/mix": ["data.sources={a:{kind:gsm8k,path:rows.jsonl}}"],
    "algorithm/reward_trajectories": [
        *("data=tools", "model=tiny_long", "rollout.max_episode_tokens=128"),
        *("+needs.policy=owner/model", "+needs.reward=owner/model"),
    ],
    "algorithm/teacher_trajectories": [
        *("data=tools_catalogue", "model=tiny_long", "rollout.max_episode_tokens=128", "+needs.policy=owner/model")
    ],
    "algorithm/trajectories": ["data=tools", "model=tiny_long", "rollout.max_episode_tokens=128"],
    "algorithm/attempt_pairs": [
        *("data=tools", "model=tiny_long", "rollout.max_episode_tokens=128", "+needs.policy=owner/model")
    ],
    "reward/verifier": ["data=arithmetic"],
    "reward/callable": ["reward.terms.callable.function=mine.py:mine"],
    "reward/remote": ["reward.terms.remote.url=http://127.0.0.1:9/reward"],
    "rollout/vllm": ["engine=trl", "algorithm=grpo", "+needs.policy=sft", "+needs.reward=reward_model"],
    "algorithm/design_report": ["+needs.policy=sft", "reward=design", "+needs.design=criteria_hand"],
    "algorithm/rm_bench": ["+needs.reward=reward_model"],
    "algorithm/self_training": ["data=arithmetic", "reward=verifier", "+needs.policy=sft"],
    "algorithm/step_report": ["data=arithmetic", "+needs.policy=sft", "+needs.judge=prm"],
    "algorithm/test_time": ["data=arithmetic", "reward=orm", "+needs.policy=sft", "+needs.orm=orm"],
    "algorithm/compare": ["+needs.reference=sft"],
    "algorithm/rescore": ["+needs.rollouts=composite_rollouts"],
    "agent/python": ["agent.programs.python.path=mine.py:Mine"],
    **{
        f"algorithm/{name}": ["+needs.policy=sft", "+needs.reward=reward_model"]
        for name in (
            *("ppo", "grpo", "rloo", "remax", "dr_grpo", "dapo", "gspo", "cispo", "canon", "ppo_hot", "grpo_hot"),
            *("dpo_iterative", "best_of_n", "attack", "rm_report", "rm_probe"),
        )
    },
    **{
        f"algorithm/{name}": ["+needs.policy=sft"]
        for name in ("reward_model", "rubric_rm", "crossfit", "dpo", "dpo_hot", "ipo", "kto", "orpo", "simpo")
    },
    **{f"algorithm/{name}": ["data=arithmetic", "+needs.policy=sft"] for name in ("prm", "orm", "step_pairs")},
    **{
        f"algorithm/{name}": ["+needs.policy=owner/model"]
        for name in ("mt_bench", "cai_preferences", "gaia", "agent_bench", "code_bench")
    },
    **{f"data/{name}": ["data.path=owner/name"] for name in ("gsm8k", "hh_rlhf", "pairs", "graded")},
}
"""Settings that a user must add to a choice that cannot stand alone."""


@cache
def command_of(recipe: str) -> command_line.Command:
    """A recipe as it is written, checked once for all tests."""
    return command_line.check_command([f"+recipe={recipe}"])


def test_every_recipe_checks_and_plans():
    def check(name: str) -> None:
        command = command_of(name)
        assert command.recipe == name
        assert len(command.configs) == len(command.jobs) >= 1
        assert bool(command.study) == name.startswith("study/")
        assert all(job.question for job in command.configs)
        for job in {0: command.configs[0], len(command.configs) - 1: command.configs[-1]}.values():
            stages = list(artifacts.plan(job, name).upstream())
            assert all(stage.key for stage in stages)
            assert len({stage.key for stage in stages}) == len(stages)

    check_each(RECIPES, check)


@pytest.mark.slow
def test_every_choice_checks():
    def check(name: str) -> None:
        group, _, option = name.partition("/")
        job = command_line.check_command(["+recipe=sft", f"{group}={option}", *NEEDED.get(name, [])]).configs[0]
        values = inventory.read_yaml(inventory.option_files(group)[option])
        parts = registry.parts_of(group)
        chosen = getattr(getattr(job, group), parts)[option] if parts else getattr(job, group)
        assert registry.kind_of(group, chosen) == values["kind"]
        for key, value in values.items():
            if key != "kind" and not any(f"{key}=" in needed for needed in NEEDED.get(name, [])):
                found = schema.to_plain_values(getattr(chosen, key))
                if key == "tuned":  # completed by what suits models of this size
                    found = {
                        algorithm: {name: found[algorithm][name] for name in value[algorithm]} for algorithm in value
                    }
                assert found == value, key

    check_each(CHOICES, check)


@pytest.mark.slow
def test_a_checked_config_survives_the_round_trip():
    def check(name: str) -> None:
        for job in command_of(name).configs:
            assert config_check.check(root.to_values(job)) == job

    check_each(RECIPES, check)


@pytest.mark.slow
def test_every_recipe_has_a_memory_plan():
    def check(name: str) -> None:
        for stage in artifacts.plan(command_of(name).configs[0], name).upstream():
            found = plan_stage(stage)
            holds_models = bool(stage.config.algorithm.model_copies(adapter=False))  # what only asks a judge holds none
            assert holds_models <= found.floor <= found.peak
            assert bool(found.lines) == holds_models and found.phases

    check_each(RECIPES, check)


def test_no_setting_of_a_recipe_reads_as_a_secret():
    def check(name: str) -> None:
        values = root.to_values(command_of(name).configs[0])
        assert redacted(values) == values

    check_each([name for name in RECIPES if not name.startswith("study/")], check)


def test_no_setting_that_holds_texts_reads_as_a_secret():
    """A run whose config.yaml hides a setting cannot be scored again or published."""
    classes = [registry.settings_class(group, kind) for group in registry.groups() for kind in registry.kinds(group)]
    classes += [section.cls for section in registry.sections().values()]
    hidden = [
        f"{cls.__name__}.{name}"
        for cls in classes
        for name, hint in schema.field_types(cls).items()
        if "str" in str(hint) and redacted({name: ["yes", "no"]}) != {name: ["yes", "no"]}
    ]
    assert hidden == []


def test_fronts_of_recipes_have_directions():
    for name in RECIPES:
        if study := command_of(name).study:
            check_fronts(study.fronts)


@pytest.mark.parametrize("model", ["tiny", "gpt2", "qwen2.5_0.5b"])
@pytest.mark.parametrize("recipe", ["sft", "dpo_iterative"])
def test_every_model_names_all_settings_that_are_left_to_it(recipe, model):
    algorithm = checked(recipe, f"model={model}").algorithm
    for name in ("optimizer", "lr", "batch_size", "max_length"):
        assert getattr(algorithm, name) is not None


def test_composing_does_not_walk_the_stack(monkeypatch):
    """For each frame it looks through all modules that are loaded: as slow as all the rest together."""

    def walked():
        raise AssertionError("the stack was walked")

    monkeypatch.setattr("inspect.stack", walked)
    assert compose.compose(["+recipe=dpo"])["algorithm"]["kind"] == "dpo"


COMMANDS = [
    ["+recipe=sft"],
    ["+recipe=sft", "seed=3", "algorithm.lr=1e-3", "outputs=out", "model.lora.rank=4"],
    ["seed=3", "+recipe=ppo", "algorithm.beta=0.2", "data=mini_hh_small", "algorithm.beta=1"],
    ["+recipe=sft", 'outputs="a b: c"', "outputs='it\\'s'", "data.seed=null", "runtime.device=cpu"],
    ["+recipe=sft", "rollout.stop=[a,'b c',1,null]", "model.lora.targets=[q_proj]"],
    ["+recipe=ppo", "++needs.policy=owner/model", "needs.reward=null", "++stages.sft.algorithm.epochs=2"],
    ["+recipe=ppo", "++stages.sft={algorithm:{epochs:2}}", "++stages.sft.algorithm.lr=1"],
    ["+recipe=ppo", "reward=[bt,length]", "reward.terms.bt.weight=2", "reward.terms.length={weight:0.5}"],
    ["+recipe=sft", "model={hidden:16}", "model.hidden=32"],
    ["+recipe=sft", "seed=1", "++seed=2", "seed=3"],
    ["+recipe=sft", "~algorithm.lr", "seed=1"],
    ["+recipe=sft", "seed=1", "outputs=${seed}/x"],
    ["+recipe=sft", "model.lora={rnk:4}"],
    ["+recipe=sft", "outputs={a:'b c',d:{e:[1,{f:2}]}}", "alerts=3"],
    ["+recipe=ppo", "algorithm.bta=0.1"],
    ["+recipe=sft", "+study.question=why", "++study.size=quick"],
]
"""Command lines whose values are put into the composition of their choices, and some that Hydra has to compose."""


@pytest.mark.slow
@pytest.mark.parametrize("overrides", COMMANDS, ids=" ".join)
def test_composing_shares_work_and_gives_what_hydra_gives(overrides, monkeypatch):
    def outcome() -> str:
        """The values with their types, or the words of the error."""
        try:
            return repr(compose.compose(overrides))
        except ConfigError as error:
            return str(error)

    shared, again = outcome(), outcome()
    monkeypatch.setattr(compose, "_compose_from_choices", lambda overrides: None)
    assert shared == again == outcome()


def test_commands_of_one_choice_are_composed_once(monkeypatch):
    compose.compose(["+recipe=sft", "data=mini_hh_small"])
    monkeypatch.setattr(compose, "hydra_compose", None)  # calling it would fail
    values = compose.compose(["+recipe=sft", "data=mini_hh_small", "seed=7", "model.lora.rank=2"])
    assert (values["seed"], values["model"]["lora"]["rank"]) == (7, 2)
    assert compose.compose(["+recipe=sft", "data=mini_hh_small"])["model"]["lora"]["rank"] != 2, "a copy was changed"


def test_a_stored_file_is_a_config_of_its_own_each_time_it_is_loaded():
    compose.register_store()
    first, second = (ConfigStore.instance().load("algorithm/dpo.yaml") for _ in range(2))
    assert isinstance(first.node, DictConfig) and first.package == "algorithm"
    assert first.node == second.node == inventory.option("algorithm", "dpo").node
    first.node.beta = 7.0
    assert second.node.beta != 7.0, "a change of one composition reaches the next"


@pytest.mark.parametrize("loss", ["ipo", "kto", "simpo", "orpo"])
def test_a_loss_brings_its_own_beta(loss):
    """`algorithm=dpo algorithm.loss=simpo` is what `algorithm=simpo` is; a written beta stays."""
    preset = checked("dpo", f"algorithm={loss}").algorithm
    typed = checked("dpo", f"algorithm.loss={loss}").algorithm
    assert typed.beta == preset.beta != checked("dpo").algorithm.beta
    assert typed.coefficients() == preset.coefficients()
    assert checked("dpo_iterative", f"algorithm.loss={loss}").algorithm.beta == preset.beta
    assert checked("dpo", f"algorithm.loss={loss}", "algorithm.beta=0.7").algorithm.beta == 0.7
    other = "kto" if loss == "ipo" else "ipo"
    if loss != "simpo":  # its preset also writes gamma_beta_ratio, which no other loss reads
        mixed = checked("dpo", f"algorithm={loss}", f"algorithm.loss={other}").algorithm
        assert mixed.beta == checked("dpo", f"algorithm={other}").algorithm.beta


def test_inpo_takes_the_tau_of_its_paper():
    assert checked("dpo_iterative", "algorithm.loss=inpo").algorithm.beta == 0.0025
    assert checked("dpo_iterative", "algorithm.loss=inpo", "algorithm.beta=0.05").algorithm.beta == 0.05


def test_the_batch_of_an_iteration_follows_the_group_size():
    sizes = {size: checked("grpo", f"algorithm.group_size={size}").algorithm for size in (2, 3, 4, 8)}
    assert {size: settings.batch_size for size, settings in sizes.items()} == {2: 32, 3: 48, 4: 64, 8: 64}
    with pytest.raises(ConfigError, match="batch_size=64 does not divide"):
        checked("grpo", "algorithm.group_size=2", "algorithm.batch_size=64")
    swept = command_line.check_command(["+recipe=grpo", "algorithm.group_size=2,4,8"])
    assert [job.algorithm.group_size for job in swept.configs] == [2, 4, 8]


@pytest.mark.parametrize(
    ("total", "target", "size"), [(61, 16, 61), (62, 16, 31), (48, 64, 48), (50, 32, 25), (64, 64, 64)]
)
def test_the_closest_divisor(total, target, size):
    assert closest_divisor(total, target) == size


def test_zero_trains_with_adamw_unless_another_optimizer_is_written():
    assert checked("sft").algorithm.optimizer == "muon"
    assert checked("sft", "sharding=zero2").algorithm.optimizer == "adamw"
    assert checked("sft", "sharding=fsdp_full").algorithm.optimizer == "muon"
    with pytest.raises(ConfigError, match=r"algorithm.optimizer=muon needs full matrices"):
        checked("sft", "sharding=zero2", "algorithm.optimizer=muon", "algorithm.muon_lr=0.01")


def test_a_rolling_buffer_may_name_its_window():
    named = checked("dpo_iterative", "algorithm.buffer=rolling3")
    written = checked("dpo_iterative", "algorithm.buffer=rolling", "algorithm.window=3")
    assert (named.algorithm.buffer, named.algorithm.window) == ("rolling", 3)
    assert named == written
    swept = command_line.check_command(["+recipe=dpo_iterative", "algorithm.buffer=current,rolling2,rolling4"])
    assert [job.algorithm.window for job in swept.configs] == [2, 2, 4]
    with pytest.raises(ConfigError, match=r"buffer=rolling3 keeps 3 rounds, but algorithm\.window=4"):
        checked("dpo_iterative", "algorithm.buffer=rolling3", "algorithm.window=4")
    with pytest.raises(ConfigError, match="buffer=rolling0 is not one of"):
        checked("dpo_iterative", "algorithm.buffer=rolling0")


@pytest.mark.parametrize(
    ("overrides", "name", "question"),
    [
        (["+recipe=grpo"], "grpo", None),
        (["+recipe=grpo", "algorithm=grpo"], "grpo", None),
        (
            ["+recipe=grpo", "algorithm=ppo"],
            "grpo algorithm=ppo",
            "What does algorithm=ppo do where the recipe grpo has algorithm=grpo?",
        ),
        (["+recipe=grpo", "algorithm=ppo", "question='Does it?'"], "grpo algorithm=ppo", "Does it?"),
    ],
)
def test_the_name_and_the_question_follow_a_replaced_algorithm(overrides, name, question):
    command = command_line.check_command(overrides)
    assert command.names == [name]
    assert command.configs[0].question == (question or command_of("grpo").configs[0].question)


def test_recipes_can_be_swept():
    command = command_line.check_command(["+recipe=sft,reward_model", "seed=0,1"])
    assert command.names == ["sft", "sft", "reward_model", "reward_model"]
    assert command.recipe is None
    assert command.study is not None
    assert (command.study.compare, command.study.baseline) == ("recipe", "sft")
    assert command.configs[0] == checked("sft")
    assert command.configs[3] == checked("reward_model", "seed=1")
    with pytest.raises(ConfigError, match="study/buffers is a sweep of its own; run one at a time"):
        command_line.check_command(["+recipe=sft,study/buffers"])


def test_a_swept_choice_may_have_settings_that_the_recipe_lacks():
    command = command_line.check_command(["+recipe=grpo", "algorithm=ppo,ppo_hot", "algorithm.critic_warmup=1"])
    assert [config.algorithm.critic_warmup for config in command.configs] == [1, 1]
    assert command.names == ["grpo algorithm=ppo", "grpo algorithm=ppo_hot"]


def test_the_time_limit_of_collectives_is_in_no_key():
    stages = [
        artifacts.plan(checked("sft", "artifacts.distinct=[sharding]", *more), "sft")
        for more in ((), ("sharding.timeout_minutes=5",))
    ]
    assert stages[0].settings_key == stages[1].settings_key
    assert [stage.config.sharding.timeout_minutes for stage in stages] == [30, 5]


def test_repetitions_of_a_job_differ_in_seeds_alone():
    repeated = [planned("dpo", f"seed={seed}").settings_but_seeds for seed in (0, 1)]
    assert repeated[0] == repeated[1]
    assert planned("dpo", "seed=0").settings_key != planned("dpo", "seed=1").settings_key
    # A setting of an upstream stage counts too.
    other = planned("dpo", "stages.sft.algorithm.epochs=0.5")
    assert other.settings_but_seeds not in repeated


@pytest.mark.slow
def test_every_study_repeats_its_jobs_with_other_seeds():
    def check(recipe: str) -> None:
        command = command_line.check_command([f"+recipe={recipe}", "size=smoke", "seed=0,1"])
        settings: dict[str, set[str]] = {}
        for job, config in zip(command.jobs, command.configs, strict=True):
            level = level_name({key: value for key, value in job.items() if key != "seed"})
            settings.setdefault(level, set()).add(artifacts.plan(config, recipe).settings_but_seeds)
        assert all(len(keys) == 1 for keys in settings.values())

    swept = [name for name in inventory.recipes() if name.startswith("study/") and name != "study/search_dpo"]
    check_each(swept, check)
