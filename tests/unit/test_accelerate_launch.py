"""Settings of `accelerate launch` become overrides, contradict the command, or are refused (launch/accelerate.py).

The environments are those that accelerate itself prepares from config files.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.stages import preflight
from rlhf_lab.stages.launch import accelerate

FSDP_1 = {
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_forward_prefetch": False,
    "fsdp_offload_params": False,
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_sync_module_states": True,
    "fsdp_use_orig_params": True,
}
"""`fsdp_config` as `accelerate config` writes it for FSDP 1."""
FSDP_2 = {
    "fsdp_version": 2,
    "fsdp_activation_checkpointing": True,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_offload_params": False,
    "fsdp_reshard_after_forward": False,
    "fsdp_state_dict_type": "FULL_STATE_DICT",
}
"""The same for FSDP 2."""
ZERO_3 = {
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 0.5,
    "offload_optimizer_device": "none",
    "offload_param_device": "none",
    "zero3_init_flag": True,
    "zero3_save_16bit_model": True,
    "zero_stage": 3,
}
"""`deepspeed_config` as `accelerate config` writes it."""


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Return a function: config file → the environment that accelerate prepares, without that of torchrun."""
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("MASTER_ADDR", raising=False)

    def prepare(**values: Any) -> dict[str, str]:
        config = {"compute_environment": "LOCAL_MACHINE", "num_machines": 1, "machine_rank": 0, "num_processes": 2}
        file = tmp_path / "accelerate.yaml"
        file.write_text(yaml.safe_dump({**config, "mixed_precision": "no", "main_process_port": 0, **values}))
        arguments = launch_command_parser().parse_args(["--config_file", str(file), "-m", "rlhf_lab"])
        arguments, defaults, _ = _validate_launch_command(arguments)
        if arguments.use_deepspeed:
            arguments.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
            return prepare_deepspeed_cmd_env(arguments)[1]
        if arguments.use_fsdp or arguments.multi_gpu:
            return prepare_multi_gpu_env(arguments)
        return prepare_simple_launcher_cmd_env(arguments)[1]

    return prepare


def added(environment: dict[str, str], *typed: str, strategy: str = "none") -> list[str]:
    """Return the overrides that accelerate adds to a command whose composed `sharding` is `strategy`."""
    settings = accelerate.overrides(environment, typed, lambda words: strategy)
    return [setting.override for setting in settings]


def started(environment: dict[str, str], processes: int = 2) -> dict[str, str]:
    """Return the environment with the variables that torchrun adds."""
    return {**environment, "RANK": "0", "WORLD_SIZE": str(processes)}


@pytest.mark.parametrize(
    ("strategy", "option"), [("FULL_SHARD", "fsdp_full"), ("SHARD_GRAD_OP", "fsdp_grad_op"), ("NO_SHARD", "ddp")]
)
def test_fsdp_1(environment, strategy, option):
    variables = environment(distributed_type="FSDP", fsdp_config={**FSDP_1, "fsdp_sharding_strategy": strategy})
    assert accelerate.problems(variables) == []
    assert added(variables) == [f"sharding={option}"]


def test_fsdp_2_with_checkpointing_and_bf16_beside_typed_settings(environment):
    variables = environment(distributed_type="FSDP", fsdp_config=FSDP_2, mixed_precision="bf16")
    assert accelerate.problems(variables) == []
    assert added(variables, "+recipe=sft") == [
        "runtime.dtype=bfloat16",
        "sharding=fsdp_grad_op",
        "sharding.checkpointing=true",
    ]
    note = accelerate.note(accelerate.read_settings(variables))
    assert "sharding=fsdp_grad_op (fsdp_reshard_after_forward=false)" in note
    # typed settings agree or contradict
    assert added(variables, "sharding=fsdp_grad_op", "sharding.checkpointing=True") == ["runtime.dtype=bfloat16"]
    with pytest.raises(ConfigError) as raised:
        added(variables, "sharding=ddp", "++runtime.dtype=float32")
    assert len(raised.value.problems) == 2
    assert "runtime.dtype=float32, but accelerate launch was told mixed_precision=bf16" in raised.value.problems[0]
    assert "which is sharding=fsdp_grad_op here; remove one of the two" in raised.value.problems[1]


def test_deepspeed(environment):
    variables = environment(distributed_type="DEEPSPEED", deepspeed_config=ZERO_3)
    assert accelerate.problems(variables) == []
    assert added(variables) == ["sharding=zero3", "algorithm.max_grad_norm=0.5"]
    assert added(variables, "algorithm.max_grad_norm=.50") == ["sharding=zero3"]
    offloaded = {**ZERO_3, "offload_optimizer_device": "cpu", "gradient_accumulation_steps": 4}
    steps, offload = accelerate.problems(environment(distributed_type="DEEPSPEED", deepspeed_config=offloaded))
    assert "gradient_accumulation_steps=4, but a step has a fixed size; set it to 1, and set algorithm" in steps
    assert "offload_optimizer_device=cpu, but optimizer state and trained parameters stay on the device" in offload


def test_deepspeed_with_its_own_file(environment, tmp_path):
    file = tmp_path / "deepspeed.json"

    def variables(**values: Any) -> dict[str, str]:
        file.write_text(json.dumps({"train_batch_size": "auto", **values}))
        return environment(distributed_type="DEEPSPEED", deepspeed_config={"deepspeed_config_file": str(file)})

    assert added(variables(zero_optimization={"stage": 1}, bf16={"enabled": True}, gradient_clipping="auto")) == [
        "runtime.dtype=bfloat16",
        "sharding=zero1",
    ]
    assert added(variables(zero_optimization={"stage": 0})) == ["sharding=ddp"]
    zero = {"stage": 2, "offload_param": {"device": "nvme"}}
    found = accelerate.problems(variables(zero_optimization=zero, fp16={"enabled": True}, optimizer={"type": "Adam"}))
    assert [line.split(": ")[1].split(",")[0] for line in found] == [
        "offload_param_device=nvme",
        "fp16 of the DeepSpeed file=true",
        "the DeepSpeed file has optimizer",
    ]
    broken = variables()
    file.write_text("{")
    assert "cannot be read" in accelerate.problems(broken)[0]


def test_plain_processes_are_ddp_unless_a_strategy_is_chosen(environment):
    variables = environment(distributed_type="MULTI_GPU")
    assert added(started(variables)) == ["sharding=ddp"]
    assert added(started(variables), strategy="fsdp") == []  # of the recipe
    assert added(started(variables), "sharding=fsdp_full") == []
    assert added(started(variables, processes=1)) == []


def test_processes_on_a_cpu_are_one(environment):
    variables = environment(distributed_type="NO", num_processes=1, use_cpu=True)
    assert accelerate.problems(variables) == []
    assert added(variables) == ["runtime.device=cpu"]
    variables = environment(distributed_type="MULTI_CPU", num_processes=2, use_cpu=True)
    (problem,) = accelerate.problems(variables)
    assert "asked for several processes but started one" in problem


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"fsdp_sharding_strategy": "HYBRID_SHARD"}, "set it to FULL_SHARD, with sharding.replicas=N for N copies"),
        ({"fsdp_offload_params": True}, "fsdp_offload_params=true, but trained parameters stay on the device"),
        ({"fsdp_activation_checkpointing_offload": True}, "inputs of recomputed blocks stay on the device"),
    ],
)
def test_what_fsdp_cannot_do_here_is_refused(environment, values, problem):
    (found,) = accelerate.problems(environment(distributed_type="FSDP", fsdp_config={**FSDP_1, **values}))
    assert problem in found


def test_other_settings_are_refused(environment, monkeypatch):
    variables = environment(
        distributed_type="MULTI_GPU", mixed_precision="fp16", dynamo_config={"dynamo_backend": "INDUCTOR"}
    )
    half, dynamo = accelerate.problems(variables)
    assert "mixed_precision=fp16, but training is in float32 or bfloat16; set it to bf16 or no" in half
    assert "dynamo_backend=inductor, but models are not compiled here" in dynamo
    for name in ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_BACKEND"):
        monkeypatch.setenv(name, variables[name])
    with pytest.raises(ConfigError, match="mixed_precision=fp16"):
        preflight.check([])


def test_dimensions_of_parallelism(environment):
    parallelism = {"parallelism_config_dp_shard_size": 2, "parallelism_config_tp_size": 2}
    variables = environment(distributed_type="FSDP", fsdp_config=FSDP_2, parallelism_config=parallelism)
    (problem,) = accelerate.problems(variables)
    assert "parallelism_config_tp_size=2, but tensor parallelism does not exist here; set it to 1" in problem


def test_copies_of_a_sharded_model(environment):
    """Four processes: two copies, each sharded over two processes."""
    sizes = {"parallelism_config_dp_shard_size": 2, "parallelism_config_dp_replicate_size": 2}
    variables = environment(distributed_type="FSDP", num_processes=4, fsdp_config=FSDP_2, parallelism_config=sizes)
    assert accelerate.problems(variables) == []
    assert added(variables) == ["sharding=fsdp_grad_op", "sharding.replicas=2", "sharding.checkpointing=true"]


def test_without_accelerate_nothing_is_added():
    assert accelerate.problems({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node0"}) == []
    assert added({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node0"}) == []
    (problem,) = accelerate.problems({"ACCELERATE_USE_MEGATRON_LM": "true"})
    assert "there is no tensor or pipeline parallelism here" in problem
