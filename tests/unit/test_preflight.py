"""What would fail after minutes of building is refused before anything is built."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from support import command_inside, planned, write_pairs

from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.memory.shapes import source_shape
from rlhf_lab.models import model_files
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model
from rlhf_lab.models.lora import adapter_chain
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.packs.code.sandbox import sandbox
from rlhf_lab.rewards.external import functions
from rlhf_lab.stages import preflight

SMALL = ("model=micro", "data=mini_hh_small")
ROWS = [(f"question {i}", "a good reply", "a bad reply") for i in range(20)]


def problems(recipe: str, *overrides: str) -> str:
    return "\n".join(preflight.problems(planned(recipe, *overrides)))


def model_folder(folder: Path, tensors: tuple[str, ...] = ("wte.weight",), **config: Any) -> Path:
    """The files of a GPT-2-shaped checkpoint, a number per tensor."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **config}))
    (folder / "tokenizer.json").write_text("{}")
    entries = {n: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, n in enumerate(tensors)}
    header = json.dumps(entries).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4 * len(tensors)))
    return folder


@pytest.mark.parametrize(
    ("recipe", "overrides", "library", "install"),
    [
        ("dpo", ["engine=trl"], "trl", "'rlhf_lab[trl]'"),
        ("dpo", ["model.lora.rank=4", "stages.sft.model.lora.rank=0"], "peft", "'rlhf_lab[lora]'"),
        ("dpo", ["tracker=wandb"], "wandb", "'rlhf_lab[wandb]'"),
        ("dpo", ["tracker=trackio"], "trackio", "'rlhf_lab[trackio]'"),
        ("dpo", ["tracker=tensorboard"], "tensorboard", "'rlhf_lab[tensorboard]'"),
        (
            "sft",
            ["sharding=zero2", "algorithm.optimizer=adamw"],
            "deepspeed",
            "'rlhf_lab[deepspeed]'",
        ),
        ("grpo", ["engine=trl", "rollout=vllm"], "vllm", "'trl[vllm]'"),
        ("dpo", ["data=pairs", "data.path=owner/name"], "datasets", "datasets"),
    ],
)
def test_a_library_that_is_not_installed(monkeypatch, recipe, overrides, library, install):
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name == library else object())
    overrides = [o.replace("stages.", "++stages.") for o in overrides]
    found = preflight.problems(planned(recipe, *overrides))
    assert len(found) == 1
    assert f"pip install {install}" in found[0]


def test_what_is_installed_is_no_problem(monkeypatch):
    monkeypatch.setattr(preflight, "find_spec", lambda name: object())
    assert not problems("dpo", "engine=trl", "tracker=wandb")


@pytest.mark.parametrize(
    ("value", "name", "message"),
    [
        ("math:floor", "mine", "mine is no entry point of the group rlhf_lab.rewards (other)"),
        ("no_such_module:score", "other", "cannot be imported (ModuleNotFoundError"),
        ("math:no_such_function", "other", "cannot be imported (AttributeError"),
        ("math:pi", "other", "is float, not a function"),
    ],
)
def test_a_function_that_is_not_there(monkeypatch, value, name, message):
    declared = EntryPoint("other", value, functions.GROUP)
    monkeypatch.setattr(functions, "entry_points", lambda group: [declared])
    found = problems("grpo", "reward=callable", f"reward.terms.callable.name={name}", *SMALL)
    assert message in found


def test_folders_that_are_no_models(tmp_path):
    empty = tmp_path / "empty"
    (empty / "best").mkdir(parents=True)
    (empty / "best/config.json").write_text("{}")
    assert "neither config.json nor adapter_config.json; did you mean " in problems("sft", *hf(empty))
    whole = model_folder(tmp_path / "whole")
    assert not problems("sft", *hf(whole))
    (whole / "tokenizer.json").unlink()
    assert "has no tokenizer" in problems("sft", *hf(whole))
    weights = (whole / "model.safetensors").read_bytes()
    (whole / "model.safetensors").write_bytes(weights[:-1])
    assert "ends before its last tensor" in problems("sft", *hf(whole))
    (whole / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    assert "git lfs pull" in problems("sft", *hf(whole))
    (whole / "model.safetensors").rename(whole / "pytorch_model.bin")
    assert "pytorch_model.bin and no *.safetensors" in problems("sft", *hf(whole))
    (whole / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert "lacks model-1.safetensors" in problems("sft", *hf(whole))
    with pytest.raises(ConfigError, match="there is no such folder"):
        problems("sft", *hf(whole / "config.json"))


def hf(folder: Path) -> tuple[str, ...]:
    return ("model=hf", f"model.path={folder}", "data=mini_hh_small")


def test_an_adapter_is_judged_with_its_base(tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    found = problems("dpo", f"needs.policy={adapter}", *SMALL)
    assert "adapter without its weights" in found
    assert f"needs.policy={adapter}: its base={tmp_path} is no model" in found


def test_a_reward_model_has_a_head_and_a_policy_has_none(tmp_path):
    policy, reward = (
        model_folder(tmp_path / "policy"),
        model_folder(tmp_path / "reward", ("wte.weight", "score.weight")),
    )
    assert not problems("grpo", f"needs.policy={policy}", f"needs.reward={reward}", *SMALL)
    found = problems("grpo", f"needs.policy={reward}", f"needs.reward={policy}", *SMALL)
    assert "policy is no reward model: it has no head" in found
    assert "reward is a reward model: as a language model" in found


def test_a_chat_template_that_is_not_there(tmp_path):
    folder = model_folder(tmp_path / "model")
    (folder / "tokenizer_config.json").write_text("{}")
    chosen = ("model=hf", f"model.path={folder}", "model.chat_template=true")
    assert f"the tokenizer of {folder} has no chat template" in problems("sft", *chosen)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert "chat template" not in problems("sft", *chosen)


def test_rows_that_a_model_cannot_read(tmp_path):
    short = model_folder(tmp_path / "short", n_positions=64)
    found = problems("grpo", *hf(short), f"needs.policy={short}", "reward=gold")
    assert "algorithm.max_length=512 does not fit the 64 positions" in found
    assert "rollout.max_prompt_tokens + rollout.max_new_tokens=512 does not fit" in found


def test_hub_models_offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in "".join(model_files.problems("no-such/model", "model.path"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not model_files.problems("no-such/model", "model.path")
    assert "a hub id is owner/name" in model_files.problems("a/b/c", "model.path")[0]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"write model.path={tmp_path}" in model_files.problems("~", "model.path")[0]


def test_data_files(tmp_path):
    rows, empty = write_pairs(tmp_path / "rows.jsonl", ROWS), tmp_path / "empty.jsonl"
    empty.write_text("")

    def found(path: Path, *more: str) -> str:
        return problems("dpo", "model=micro", "data=pairs", f"data.path={path}", *more)

    assert not found(rows)
    assert "has no rows" in found(empty)
    assert "no such file" in found(tmp_path / "nothing.jsonl")
    rows.with_suffix(".txt").write_text("x")
    assert "the form of rows.txt is unknown" in found(rows.with_suffix(".txt"))
    assert "column 'good' is missing" in found(rows, "data.chosen=good")
    one = write_pairs(tmp_path / "one.jsonl", ROWS[:1])
    assert "one.jsonl has one row, and a test split needs another" in found(one)
    assert not found(one, f"data.test_path={rows}")
    assert "empty.jsonl has no rows" in found(rows, f"data.test_path={empty}")


def test_problems_come_together_and_nothing_is_built(tmp_path):
    status, printed = command_inside(
        tmp_path, "+recipe=grpo", "reward=callable", "reward.terms.callable.name=nobody", "needs.policy=.", *SMALL
    )
    assert status == 2
    assert "nobody is no entry point" in printed
    assert "needs.policy=. is no model" in printed
    assert not (tmp_path / "outputs").exists()
    status, printed = command_inside(
        tmp_path, "+recipe=grpo", "seed=0,1", "reward=callable", "reward.terms.callable.name=nobody", *SMALL
    )
    assert status == 2
    assert printed.count("nobody is no entry point") == 1
    assert not (tmp_path / "outputs").exists()


def test_torch_is_not_imported():
    code = (
        "import sys\nfrom rlhf_lab.config import compose\nfrom rlhf_lab.stages import artifacts, preflight\n"
        "command = compose.check_command(['+recipe=ppo', 'reward=gold'])\n"
        "assert not preflight.problems(artifacts.plan(command.configs[0], 'ppo'))\n"
        "sys.exit(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def asks_judge(monkeypatch):
    """Supervised learning as a stage that asks the judge."""
    from rlhf_lab.algorithms.supervised.settings import SFT

    monkeypatch.setattr(SFT, "asks_judge", True)


def test_a_judge_without_key_price_or_library(monkeypatch, asks_judge):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert "the environment variable ANTHROPIC_API_KEY has no key" in problems("sft", "judge=anthropic")
    assert "judge.model=claude-9 has no price" in problems("sft", "judge=anthropic", "judge.model=claude-9")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "planted-key-1234")
    assert problems("sft", "judge=anthropic") == ""
    local_server = ["judge=openai_compatible", "judge.base_url=http://127.0.0.1:8000/v1", "judge.model=m"]
    assert problems("sft", *local_server) == ""
    missing = ("anthropic", "openai")
    monkeypatch.setattr(
        "rlhf_lab.packs.judging.judges.preflight.find_spec", lambda name: None if name in missing else object()
    )
    assert "judge=anthropic needs a library" in problems("sft", "judge=anthropic")
    assert "pip install 'rlhf_lab[judge]'" in problems("sft", *local_server)


def test_a_local_judge_that_is_no_model(asks_judge, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "judge.path=" in problems("sft", "judge=local", f"judge.path={tmp_path / 'empty'}")


def test_a_judge_that_nobody_asks_needs_nothing(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert problems("sft", "judge=anthropic") == ""


@pytest.mark.parametrize(
    ("recipe", "overrides", "runs_code"),
    [
        ("grpo", ["data=humaneval", "data.test_fraction=0.1", "reward=code_tests"], True),
        ("grpo", ["reward=gold"], False),
        ("agent_bench", ["agent=code_executor"], True),
        ("agent_bench", ["agent=react"], False),
    ],
)
def test_a_machine_without_a_sandbox(monkeypatch, tmp_path, recipe, overrides, runs_code):
    if "data=humaneval" in overrides:
        row = {
            "task_id": "0",
            "prompt": "def f(x):\n",
            "entry_point": "f",
            "test": "assert f(1)",
            "canonical_solution": "",
        }
        (tmp_path / "rows.jsonl").write_text(20 * f"{json.dumps(row)}\n")
        overrides = [*overrides, f"data.path={tmp_path / 'rows.jsonl'}", "needs.reward=null"]
    monkeypatch.setattr(sandbox, "why_not", lambda level, image="": "user namespaces are not allowed")
    found = problems(recipe, *overrides, f"outputs={tmp_path / 'outputs'}")
    with pytest.raises(sandbox.SandboxUnavailable) as raised:
        sandbox.choose_level(sandbox.Sandboxing())
    assert (str(raised.value) in found) == runs_code, found
    monkeypatch.setattr(sandbox, "why_not", lambda level, image="": "")
    assert "sandbox.level" not in problems(recipe, *overrides, f"outputs={tmp_path / 'outputs'}")


def test_the_identity_of_a_hub_model_holds_its_commit(tmp_path, monkeypatch):
    """As the cache of downloads stores it: refs/main names the commit of a snapshot."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--owner--name"
    (cached / "refs").mkdir(parents=True)
    identities = [model_files.pinned_identity("owner/name")]
    assert identities == [model_files.model_identity("owner/name")]  # nothing is downloaded yet
    for commit in ("a" * 40, "b" * 40):
        (cached / "refs/main").write_text(commit)
        (cached / "snapshots" / commit).mkdir(parents=True)
        (cached / "snapshots" / commit / "config.json").write_text("{}")
        identities.append(model_files.pinned_identity("owner/name"))
    assert len(set(identities)) == 3
    folder = cached / "snapshots" / commit
    assert model_files.pinned_identity(str(folder)) == model_files.model_identity(str(folder))


def adapter(folder, base):
    """An adapter's folder, as far as its files decide what it lies on."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    return str(folder)


@pytest.mark.parametrize("circle", [1, 2, 3])
def test_adapters_that_lie_on_each_other_in_a_circle(circle, tmp_path):
    names = [tmp_path / f"adapter-{number}" for number in range(circle)]
    for number, folder in enumerate(names):
        adapter(folder, names[(number + 1) % circle])
    (problem,) = model_files.problems(str(names[0]), "model.source")
    assert problem.startswith("model.source=") and "lie on each other in a circle" in problem
    assert problem.count("→") == circle
    for function in (model_files.config_of, model_files.model_identity, source_shape):
        with pytest.raises(ArtifactError, match="in a circle"):
            function(str(names[0]))


def test_merged_adapters_in_a_circle(tmp_path):
    """Folders of stages have the adapter beside merged weights, in `adapter/`."""
    pytest.importorskip("peft")
    folders = [tmp_path / name for name in ("a", "b")]
    for folder, base in zip(folders, folders[::-1], strict=True):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        adapter(folder / "adapter", base)
        settings = {"peft_type": "LORA", "base_model_name_or_path": str(base)}
        (folder / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ArtifactError, match="in a circle"):
        adapter_chain(folders[0])


def test_a_chain_that_ends_is_no_circle(tmp_path):
    bottom = model_folder(tmp_path / "bottom")
    middle = adapter(tmp_path / "middle", bottom)
    model_files.check_bases(adapter(tmp_path / "top", middle))


@pytest.mark.parametrize(
    "header",
    [b"[" * 100_000, b"9" * 5_000, b"{", b"\xff", b"[]", b'{"a": 1}', b'{"a": {"data_offsets": ["x", 1]}}'],
    ids=["depth", "digits", "cut off", "no UTF-8", "a list", "no entry", "no offsets"],
)
def test_headers_that_are_none(header, tmp_path):
    """The header of a safetensors file is JSON of whoever made the file, up to 100 MB of it."""
    folder = model_folder(tmp_path / "model")
    file = folder / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    problems = model_files.problems(str(folder), "model.source")
    if b"x" not in header:
        assert "model.safetensors is no safetensors file" in problems[0]
    with pytest.raises(ArtifactError, match=r"model\.safetensors"):
        model_files.base_identity(str(folder))


def test_a_header_longer_than_the_format_allows_is_not_read(tmp_path):
    folder = model_folder(tmp_path / "model")
    (folder / "model.safetensors").write_bytes((model_files.MAX_HEADER + 1).to_bytes(8, "little") + b"{}")
    with pytest.raises(ArtifactError, match="no safetensors file"):
        model_files.base_identity(str(folder))


CODE = {"auto_map": {"AutoConfig": "configuration.Own", "AutoModelForCausalLM": "modeling.Own"}}


def test_a_model_with_code_of_its_own_is_refused_before_anything_runs(tmp_path):
    folder = model_folder(tmp_path / "model", model_type="own_architecture", **CODE)
    (problem,) = model_files.problems(str(folder), "model.source")
    assert "needs code of its own" in problem and "never run here" in problem
    native = model_folder(tmp_path / "native", **CODE)  # transformers has GPT-2
    assert not model_files.problems(str(native), "model.source")


@pytest.mark.parametrize("load", [load_policy, load_reward_model, load_encoder])
def test_code_of_a_model_is_never_run_nor_asked_about(load, tmp_path, monkeypatch):
    """Without trust_remote_code=False transformers asks on the terminal, and runs the code where the answer is yes."""
    folder = model_folder(tmp_path / "model", model_type="own_architecture", **CODE)
    ran = tmp_path / "ran"
    for name in ("configuration", "modeling", "tokenization"):
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Own: pass\n")
    tokenizer = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["tokenization.Own", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ArtifactError, match="which is never run here"):
        load(folder, HuggingFace(path=str(folder)))
    assert not ran.exists()


@pytest.mark.parametrize(
    ("recipe", "role", "message"),
    [
        ("ppo", "reward_model", r"needs\.reward=reward_model .* use algorithm\.critic=zero, or the same data settings"),
        ("compare_policies", "dpo", r"needs\.dpo=dpo .* no KL between them"),
    ],
)
def test_a_role_with_another_vocabulary_is_refused_before_anything_is_built(tmp_path, recipe, role, message):
    """Fewer pairs for one stage also train another tokenizer for it, which the stages that meet cannot read."""
    common = (*SMALL, f"outputs={tmp_path}")
    few = f"++stages.{role}.data.train_pairs=60"
    found = problems(recipe, *common, few)
    assert re.search(message, found) and "train a tokenizer on different data" in found
    assert problems(recipe, *common) == ""
    # held-out pairs train no tokenizer
    assert problems(recipe, *common, f"++stages.{role}.data.test_pairs=30") == ""
    if recipe == "ppo":
        assert problems(recipe, *common, few, "algorithm.critic=zero") == ""


def test_members_with_another_vocabulary_are_refused(tmp_path):
    few = (*SMALL, f"outputs={tmp_path}", "+needs.policy_1=dpo", "++stages.dpo.data.train_pairs=60")
    refused = "needs.policy_1=dpo has another vocabulary than needs.policy"
    assert refused in problems("reward_model", *few, "algorithm.members=2")
    assert refused not in problems("reward_model", *few, "algorithm.members=2", "algorithm.shared_trunk=true")
