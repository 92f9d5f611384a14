"""Failures that would come after minutes of building are refused before anything is built."""

from __future__ import annotations

import io
import json
import re
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
import torch
from safetensors.torch import save_file
from support import command_inside, planned, write_pairs

from rlhf_lab.core import hub
from rlhf_lab.core.errors import ArtifactError, ConfigError, DataError
from rlhf_lab.memory.shapes import source_shape
from rlhf_lab.models import model_files
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model
from rlhf_lab.models.lora import adapter_chain
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.stages import preflight

SMALL = ("model=micro", "data=mini_hh_small")
ROWS = [(f"question {i}", "a good reply", "a bad reply") for i in range(20)]


def problems(recipe: str, *overrides: str) -> str:
    return "\n".join(preflight.problems(planned(recipe, *overrides)))


def model_dir(directory: Path, tensors: tuple[str, ...] = ("wte.weight",), **config: Any) -> Path:
    """The files of a GPT-2-shaped checkpoint, a number per tensor."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "gpt2", **config}))
    (directory / "tokenizer.json").write_text("{}")
    entries = {n: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, n in enumerate(tensors)}
    header = json.dumps(entries).encode()
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4 * len(tensors)))
    return directory


@pytest.mark.parametrize(
    ("recipe", "overrides", "library", "install"),
    [
        ("dpo", ["engine=trl"], "trl", "'rlhf_lab[trl]'"),
        ("dpo", ["model.lora.rank=4", "stages.sft.model.lora.rank=0"], "peft", "'rlhf_lab[lora]'"),
        ("sft", ["sharding=zero2", "algorithm.optimizer=adamw"], "deepspeed", "'rlhf_lab[deepspeed]'"),
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


def test_the_folder_of_a_run_stands_for_its_model(tmp_path):
    (tmp_path / "run").mkdir()
    model_dir(tmp_path / "run/model")
    arguments = ["dpo", "data=pairs", "data.path=x.jsonl", "needs.reward=null"]
    assert planned(*arguments, f"needs.policy={tmp_path / 'run'}").needs["policy"].model == str(tmp_path / "run")
    (tmp_path / "run/manifest.json").write_text("{}")
    stage = planned(*arguments, f"needs.policy={tmp_path / 'run'}")
    assert stage.needs["policy"].model == stage.config.needs["policy"] == str(tmp_path / "run/model")
    same = planned(*arguments, f"needs.policy={tmp_path / 'run/model'}")
    assert stage.needs["policy"].key == same.needs["policy"].key


def test_folders_that_are_no_models(tmp_path):
    empty = tmp_path / "empty"
    (empty / "best").mkdir(parents=True)
    (empty / "best/config.json").write_text("{}")
    assert "neither config.json nor adapter_config.json; did you mean " in problems("sft", *hf(empty))
    full = model_dir(tmp_path / "whole")
    assert not problems("sft", *hf(full))
    (full / "tokenizer.json").unlink()
    assert "has no tokenizer" in problems("sft", *hf(full))
    weights = (full / "model.safetensors").read_bytes()
    (full / "model.safetensors").write_bytes(weights[:-1])
    assert "is not a complete safetensors file" in problems("sft", *hf(full))
    (full / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    assert "git lfs pull" in problems("sft", *hf(full))
    (full / "model.safetensors").rename(full / "pytorch_model.bin")
    assert "pytorch_model.bin but no *.safetensors" in problems("sft", *hf(full))
    (full / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert "lacks model-1.safetensors" in problems("sft", *hf(full))
    with pytest.raises(ConfigError, match="there is no such directory"):
        problems("sft", *hf(full / "config.json"))


def hf(directory: Path) -> tuple[str, ...]:
    return ("model=hf", f"model.path={directory}", "data=mini_hh_small")


def test_an_adapter_is_judged_with_its_base(tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    found = problems("dpo", f"needs.policy={adapter}", *SMALL)
    assert "adapter without its weights" in found
    assert f"needs.policy={adapter}: its base={tmp_path} is not a model" in found


def test_a_reward_model_has_a_head_and_a_policy_has_none(tmp_path):
    policy, reward = (model_dir(tmp_path / "policy"), model_dir(tmp_path / "reward", ("wte.weight", "score.weight")))
    assert not problems("grpo", f"needs.policy={policy}", f"needs.reward={reward}", *SMALL)
    found = problems("grpo", f"needs.policy={reward}", f"needs.reward={policy}", *SMALL)
    assert "policy is not a reward model: it has no head" in found
    assert "reward is a reward model, which lacks the head of a language model" in found


def test_a_chat_template_that_is_not_there(tmp_path):
    directory = model_dir(tmp_path / "model")
    (directory / "tokenizer_config.json").write_text("{}")
    chosen = ("model=hf", f"model.path={directory}", "model.chat_template=true")
    assert f"the tokenizer of {directory} has no chat template" in problems("sft", *chosen)
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    assert "chat template" not in problems("sft", *chosen)


def test_rows_that_a_model_cannot_read(tmp_path):
    short = model_dir(tmp_path / "short", n_positions=64)
    found = problems("grpo", *hf(short), f"needs.policy={short}", "reward=gold")
    assert "algorithm.max_length=512 does not fit the 64 positions" in found
    assert "rollout.max_prompt_tokens + rollout.max_new_tokens=512 does not fit" in found


def test_hub_models_offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in "".join(model_files.problems("no-such/model", "model.path"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(hub, "unreachable", lambda: "")
    assert not model_files.problems("no-such/model", "model.path")
    monkeypatch.setattr(hub, "unreachable", lambda: "Name or service not known")
    (problem,) = model_files.problems("no-such/model", "model.path")
    assert problem.startswith("model.path=no-such/model: there is no such directory, it is not in the cache")
    assert "https://huggingface.co cannot be reached (Name or service not known)" in problem
    assert "run `hf download no-such/model` where there is a network" in problem
    assert "a hub id has the form owner/name" in model_files.problems("a/b/c", "model.path")[0]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"set model.path={tmp_path}" in model_files.problems("~", "model.path")[0]


def test_hub_data_without_a_network(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "unreachable", lambda: "no route")
    found = problems("dpo", "data=hh_rlhf", "data.path=owner/name/folder:train")
    assert "data.path=owner/name/folder:train: there is no such directory" in found
    assert "run `hf download owner/name --repo-type dataset`" in found
    (tmp_path / "hub" / "datasets--owner--name").mkdir(parents=True)
    assert "owner/name" not in problems("dpo", "data=hh_rlhf", "data.path=owner/name/folder:train")


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (None, ""),
        (HTTPError("https://h", 404, "not found", Message(), None), ""),
        (URLError("Name or service not known"), "Name or service not known"),
        (TimeoutError("timed out"), "timed out"),
    ],
)
def test_the_hub_is_asked_once_and_any_answer_counts(monkeypatch, raised, reason):
    requested = []

    class Opener:
        def open(self, request):
            requested.append((request.full_url, request.method))
            if raised:
                raise raised
            return io.BytesIO()

    monkeypatch.setattr(hub, "build_opener", lambda redirects, limits: Opener())
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.invalid")
    hub.unreachable.cache_clear()
    try:
        assert [hub.unreachable(), hub.unreachable()] == [reason, reason]
    finally:
        hub.unreachable.cache_clear()
    assert requested == [("http://mirror.invalid", "HEAD")]


def test_data_files(tmp_path):
    rows, empty = write_pairs(tmp_path / "rows.jsonl", ROWS), tmp_path / "empty.jsonl"
    empty.write_text("")

    def found(path: Path, *more: str) -> str:
        return problems("dpo", "model=micro", "data=pairs", f"data.path={path}", *more)

    assert not found(rows)
    assert "has no rows" in found(empty)
    assert "no such file" in found(tmp_path / "nothing.jsonl")
    rows.with_suffix(".txt").write_text("x")
    assert "the format of rows.txt is unknown" in found(rows.with_suffix(".txt"))
    assert "column 'good' is missing" in found(rows, "data.chosen=good")
    one = write_pairs(tmp_path / "one.jsonl", ROWS[:1])
    assert "one.jsonl has one row, but a test split needs another" in found(one)
    assert not found(one, f"data.test_path={rows}")
    assert "empty.jsonl has no rows" in found(rows, f"data.test_path={empty}")
    policy = f"needs.policy={model_dir(tmp_path / 'policy')}"
    held_out = ("best_of_n", "data=prompts", f"data.path={one}", "reward=length", "needs.reward=null", policy)
    assert "has one row" in problems(*held_out)
    assert "has one row" not in problems(*held_out, "data.test_fraction=1")


def test_allowed_bad_rows_are_allowed_between_the_first_two(tmp_path):
    rows = write_pairs(tmp_path / "rows.jsonl", ROWS)
    first, *others = rows.read_text().splitlines()
    rows.write_text("\n".join([first, *["no JSON"] * 30, *others]))
    overrides = ("dpo", "model=micro", "data=pairs", f"data.path={rows}", "data.max_bad_rows=30")
    assert not problems(*overrides)
    rows.write_text("\n".join([first, *["no JSON"] * 30]))
    assert "has one row" in problems(*overrides)


def test_problems_come_together_and_nothing_is_built(tmp_path):
    own = ("reward=callable", "reward.terms.callable.function=gone.py:nobody")
    status, printed = command_inside(tmp_path, "+recipe=grpo", *own, "needs.policy=.", *SMALL)
    assert status == 2
    assert "there is no file gone.py" in printed
    assert "needs.policy=. is not a model" in printed
    assert not (tmp_path / "outputs").exists()
    status, printed = command_inside(tmp_path, "+recipe=grpo", "seed=0,1", *own, *SMALL)
    assert status == 2
    assert printed.count("there is no file gone.py") == 1
    assert not (tmp_path / "outputs").exists()


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
    directory = cached / "snapshots" / commit
    assert model_files.pinned_identity(str(directory)) == model_files.model_identity(str(directory))


def test_the_identity_of_large_files_covers_every_tensor(tmp_path, monkeypatch):
    """An adapter that another program merged into some layers may leave both ends of the file as they were."""
    monkeypatch.setattr(model_files, "FILE_END_BYTES", 1024)
    file = tmp_path / "model.safetensors"
    weights = {name: torch.zeros(2048) for name in ("embed", "mlp", "norm")}
    identities = set()
    for merged in (0.0, 1.0):
        save_file({**weights, "mlp": weights["mlp"] + merged}, file)
        identities.add(model_files.model_identity(str(tmp_path)))
    assert len(identities) == 2
    file.write_bytes(b"damaged " * 1024)
    assert model_files.model_identity(str(tmp_path)) not in identities


def adapter(directory, base):
    """An adapter's directory, as far as its files name its base."""
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    return str(directory)


@pytest.mark.parametrize("circle", [1, 3])
def test_adapters_that_lie_on_each_other_in_a_circle(circle, tmp_path):
    names = [tmp_path / f"adapter-{number}" for number in range(circle)]
    for index, directory in enumerate(names):
        adapter(directory, names[(index + 1) % circle])
    (problem,) = model_files.problems(str(names[0]), "model.source")
    assert problem.startswith("model.source=") and "form a circle" in problem
    assert problem.count("→") == circle
    for function in (model_files.config_of, model_files.model_identity, source_shape):
        with pytest.raises(ArtifactError, match="form a circle"):
            function(str(names[0]))


def test_merged_adapters_in_a_circle(tmp_path):
    """Directories of stages have the adapter next to merged weights, in `adapter/`."""
    pytest.importorskip("peft")
    folders = [tmp_path / name for name in ("a", "b")]
    for directory, base in zip(folders, folders[::-1], strict=True):
        directory.mkdir()
        (directory / "config.json").write_text("{}")
        adapter(directory / "adapter", base)
        settings = {"peft_type": "LORA", "base_model_name_or_path": str(base)}
        (directory / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ArtifactError, match="form a circle"):
        adapter_chain(folders[0])


def test_a_chain_that_ends_is_no_circle(tmp_path):
    bottom = model_dir(tmp_path / "bottom")
    middle = adapter(tmp_path / "middle", bottom)
    model_files.check_bases(adapter(tmp_path / "top", middle))


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADERS = {
    "depth": b"[" * 100_000,
    "digits": b"9" * 5_000,
    "no UTF-8": b"\xff",
    "no entry": b'{"a": 1}',
    "no offsets": b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": ["x", 1]}}',
    "negative shape": json.dumps({"a": {**ENTRY, "shape": [-1, -2]}}).encode(),
    "other size": json.dumps({"a": {**ENTRY, "shape": [3]}}).encode(),
    "overlap": json.dumps({"a": ENTRY, "b": {**ENTRY, "data_offsets": [4, 12]}}).encode(),
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_headers_that_are_none(header, tmp_path):
    """The header of a safetensors file is JSON from an unknown author."""
    directory = model_dir(tmp_path / "model")
    file = directory / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    assert "model.safetensors" in model_files.problems(str(directory), "model.source")[0]
    with pytest.raises(DataError, match=r"model\.safetensors"):
        model_files.base_identity(str(directory))


@pytest.mark.parametrize("length", [2**40, 3], ids=["beyond the bound", "beyond the file"])
def test_a_header_that_is_too_long_is_not_read(tmp_path, length):
    directory = model_dir(tmp_path / "model")
    (directory / "model.safetensors").write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(DataError, match=r"is not a complete safetensors file \(.*header"):
        model_files.base_identity(str(directory))


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("content", ['{"a":' * 100_000, "[]"])
def test_settings_files_of_a_model_that_are_no_objects(tmp_path, name, content):
    directory = model_dir(tmp_path / "model")
    (directory / name).write_text(content)
    assert any(name in problem for problem in model_files.problems(str(directory), "model.source"))


CODE = {"auto_map": {"AutoConfig": "configuration.Own", "AutoModelForCausalLM": "modeling.Own"}}


def test_a_model_with_code_of_its_own_is_refused_before_anything_runs(tmp_path):
    directory = model_dir(tmp_path / "model", model_type="own_architecture", **CODE)
    (problem,) = model_files.problems(str(directory), "model.source")
    assert "needs its own code" in problem and "never runs" in problem
    native = model_dir(tmp_path / "native", **CODE)  # transformers has GPT-2
    assert not model_files.problems(str(native), "model.source")


@pytest.mark.parametrize("load", [load_policy, load_reward_model, load_encoder])
def test_code_of_a_model_is_never_run_nor_asked_about(load, tmp_path, monkeypatch):
    """Without trust_remote_code=False transformers asks on the terminal, and runs the code where the answer is yes."""
    directory = model_dir(tmp_path / "model", model_type="own_architecture", **CODE)
    ran = tmp_path / "ran"
    for name in ("configuration", "modeling", "tokenization"):
        (directory / f"{name}.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Own: pass\n")
    tokenizer = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["tokenization.Own", None]}}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ArtifactError, match="which rlhf_lab never runs"):
        load(directory, HuggingFace(path=str(directory)))
    assert not ran.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "role", "message"),
    [
        (
            "ppo",
            "reward_model",
            r"needs\.reward=reward_model .* use algorithm\.critic=zero, or use the same data settings for both",
        ),
        ("compare_policies", "dpo", r"needs\.dpo=dpo .* no KL between them"),
    ],
)
def test_a_role_with_another_vocabulary_is_refused_before_anything_is_built(tmp_path, recipe, role, message):
    """Fewer pairs for one stage also train another tokenizer for it, which the stages that meet cannot read."""
    common = (*SMALL, f"outputs={tmp_path}")
    few = f"++stages.{role}.data.train_pairs=60"
    found = problems(recipe, *common, few)
    assert re.search(message, found) and "train tokenizers on different data" in found
    assert problems(recipe, *common) == ""
    # held-out pairs train no tokenizer
    assert problems(recipe, *common, f"++stages.{role}.data.test_pairs=30") == ""
    if recipe == "ppo":
        assert problems(recipe, *common, few, "algorithm.critic=zero") == ""


def test_members_with_another_vocabulary_are_refused(tmp_path):
    few = (*SMALL, f"outputs={tmp_path}", "+needs.policy_1=dpo", "++stages.dpo.data.train_pairs=60")
    refused = "needs.policy_1=dpo has another vocabulary than needs.policy"
    assert refused in problems("reward_model", *few, "algorithm.members=2")
