"""A published model is the saved one, its card says what the run says, and what must not leave the machine does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
import yaml
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import load_file, save_file
from support import ONE_LAYER, SMALL_WORLD, planned
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_lab.cli.publish import publish_command
from rlhf_lab.core import checksums as seal
from rlhf_lab.core.errors import ArtifactError, ConfigError, DataError, LabError
from rlhf_lab.core.files import read_json
from rlhf_lab.interop.publishing import card, model_files, provenance, refusals, same_model
from rlhf_lab.interop.publishing.leaks import leaks, without_local_paths
from rlhf_lab.interop.publishing.publish import PublishRequest, publish, send
from rlhf_lab.models.model_files import model_identity
from rlhf_lab.stages.execute import execute

SHA = "0123456789abcdef0123456789abcdef01234567"
SMALL = (*SMALL_WORLD, *ONE_LAYER, "algorithm.epochs=1", "algorithm.batch_size=16")

TYPED_KEY = "hf" + "_" + "aB3" * 12
"""An invented key that somebody types into a setting."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory `runs` with an SFT policy and a GRPO run with an adapter on it."""
    out = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlhf_lab.stages.manifest.git_sha", lambda: SHA)
        patch.setattr("rlhf_lab.stages.manifest.command_line", lambda: f"python -m rlhf_lab +recipe=grpo outputs={out}")
        sft = planned("sft", *SMALL, f"outputs={out}", f"question={TYPED_KEY}")
        execute(sft)
        rewarded = ("reward=length", "needs.reward=null", "reward.monitor.warmup=1", f"needs.policy={sft.model}")
        short = ("algorithm.iterations=3", "algorithm.prompts_per_iteration=8", "stages.sft.algorithm.epochs=1")
        adapter = ("model.lora.rank=2", "stages.sft.model.lora.rank=0")
        execute(planned("grpo", *SMALL, *rewarded, *short, *adapter, f"outputs={out}"))
    yield out / "runs"


@pytest.fixture(scope="module")
def sft(store: Path) -> Path:
    return next(store.glob("sft-*"))


@pytest.fixture(scope="module")
def grpo(store: Path) -> Path:
    return next(store.glob("grpo-*"))


def published(directory: Path, to: Path, **options: Any) -> str:
    """The card of a run that is published in a folder."""
    publish(PublishRequest(str(directory), str(to), **options))
    return (to / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def changed(grpo: Path, tmp_path: Path) -> Any:
    """A function that builds a checksummed copy of the GRPO run with other values in one of its JSON files."""

    def make(file: str, **values: Any) -> Path:
        directory = tmp_path / "changed"
        shutil.copytree(grpo, directory)
        path = directory / file
        if file.endswith(".yaml"):
            path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))
        else:
            path.write_text(json.dumps({**read_json(path), **values}))
        seal.write(directory, (directory / "result.json").read_text())
        return directory

    return make


def test_a_published_policy_is_the_saved_one(sft: Path, tmp_path: Path) -> None:
    to = tmp_path / "model"
    assert publish(PublishRequest(str(sft), str(to))) == str(to)
    saved, published = load_file(sft / "model" / "model.safetensors"), load_file(to / "model.safetensors")
    assert saved.keys() == published.keys()
    assert all(torch.equal(saved[name], published[name]) for name in saved)
    assert AutoModelForCausalLM.from_pretrained(to).config.vocab_size == len(AutoTokenizer.from_pretrained(to))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]  # nothing temporary is left


def test_the_card_says_what_the_run_says(grpo: Path, sft: Path, tmp_path: Path) -> None:
    text = published(grpo, tmp_path / "model", license="apache-2.0")
    manifest, result = read_json(grpo / "manifest.json"), read_json(grpo / "result.json")
    for fact in (
        manifest["key"],
        manifest["data"]["fingerprint"],
        SHA,
        "`length` (length), weight 1",
        f"Stage 1 of 2: recipe `sft`, algorithm `sft`, key `{read_json(sft / 'manifest.json')['key']}`",
        "| `model.lora.rank` | 2 |",
        "Monitor of reward hacking",
        "No gate was applied",
        "One training run with seed 0",
        f"outputs=…/{grpo.parents[1].name}",
    ):
        assert fact in text, fact
    assert str(grpo.parents[1]) not in text
    gold = result["policies"][-1]["metrics"]["gold"]
    assert f"{gold['mean']:.3f} [{gold['low']:.3f}, {gold['high']:.3f}]" in text
    matter = ModelCard(text).data
    assert matter.license == "apache-2.0" and matter.library_name == "transformers"
    assert {"rlhf_lab", "grpo"} <= set(matter.tags)
    values = {entry.metric_type: entry.metric_value for entry in matter.eval_results}
    assert values["gold"] == pytest.approx(gold["mean"], abs=1e-4)
    assert "base_model" not in matter.to_dict()  # a directory of this machine is no model of the hub


def test_a_soup_is_the_reference_and_not_the_starting_point(grpo: Path, changed: Any, tmp_path: Path) -> None:
    needs = read_json(grpo / "manifest.json")["needs"]
    directory = changed("manifest.json", needs={**needs, "soup": needs["policy"]})
    result = read_json(directory / "result.json")
    start, trained = result["policies"]
    steps = [{**trained, "name": f"step {step}"} for step in range(1, 5)]
    result["policies"] = [{**start, "name": "SFT soup"}, start, *steps]
    (directory / "result.json").write_text(json.dumps(result))
    seal.write(directory, json.dumps(result))
    text = published(directory, tmp_path / "model")
    assert "| metric | SFT soup | SFT | step 2 | step 3 | step 4 |" in text
    assert "published model; the second is its starting point. KL, win rate and drift refer to the first" in text


def test_a_stage_named_by_the_directory_of_its_model_is_told(store: Path, tmp_path: Path) -> None:
    """`needs.policy=RUN/model` leaves no recipe in the manifest, and the run counts as when its recipe is named."""
    moved = tmp_path / "runs"
    shutil.copytree(store, moved)
    sft, grpo = next(moved.glob("sft-*")), next(moved.glob("grpo-*"))
    manifest = read_json(grpo / "manifest.json")
    assert manifest["needs"]["policy"]["recipe"] is None
    manifest["needs"]["policy"]["dir"] = f"elsewhere/{sft.name}/model"
    (grpo / "manifest.json").write_text(json.dumps(manifest))
    (sft / "config.yaml").write_text("size: smoke\n")
    trained = provenance.PublishedModel(grpo)
    assert [run.path for run in trained.chain] == [sft, grpo]
    assert [recipe for recipe, _, _ in trained.stages()] == ["sft", "grpo"]
    assert "from random weights" in trained.base.words
    assert refusals.reasons_against(trained) == ["smoke"]
    # the model that the run started from is another one now
    (sft / "model" / "generation_config.json").unlink()
    changed_since = provenance.PublishedModel(grpo)
    assert [run.path for run in changed_since.chain] == [grpo]
    assert changed_since.base.words == f"a local directory `model` (identity {manifest['needs']['policy']['key']})"
    # and a recipe whose run has gone is missing
    manifest["needs"]["policy"] |= {"recipe": "sft", "dir": "elsewhere/gone"}
    (grpo / "manifest.json").write_text(json.dumps(manifest))
    gone = provenance.PublishedModel(grpo)
    assert [recipe for recipe, _, _ in gone.stages()] == ["grpo"] and "is missing" in gone.base.words


def test_rewards_of_earlier_stages_are_told(grpo: Path, tmp_path: Path) -> None:
    generated = provenance.PublishedModel(grpo)
    later = provenance.PublishedModel(grpo)
    later.__dict__["chain"] = [generated.run, later.run]
    assert later.reward_terms == ["`length` (length), weight 1, in the stage `grpo`", "`length` (length), weight 1"]


def test_a_base_of_the_hub_is_named_with_its_revision() -> None:
    base = provenance._base_of("openai-community/gpt2", "607a30d", "")
    assert base.hub_id == "openai-community/gpt2" and "607a30d" in base.words
    assert provenance._hub_data("Anthropic/hh-rlhf/harmless-base:train") == "Anthropic/hh-rlhf"
    assert provenance._hub_data("data/mine.jsonl") == "" and provenance._hub_data("./mine") == ""


def test_bfloat16_rounds_the_weights_and_says_how_far(sft: Path, tmp_path: Path) -> None:
    to = tmp_path / "half"
    text = published(sft, to, dtype="bfloat16")
    saved, rounded = load_file(sft / "model" / "model.safetensors"), load_file(to / "model.safetensors")
    assert all(torch.equal(rounded[name], saved[name].bfloat16()) for name in saved)
    assert read_json(to / "config.json")["dtype"] == "bfloat16"
    distance = same_model.require_same(sft / "model", to, "bfloat16")
    assert 0 < distance < 0.1 and f"by up to {distance:.2g};" in text


def test_an_adapter_alone_names_a_base_that_others_have(grpo: Path, tmp_path: Path) -> None:
    to = tmp_path / "adapter"
    with pytest.raises(ConfigError, match=r"base=OWNER/NAME"):
        publish(PublishRequest(str(grpo), str(to), adapter=True))
    assert not to.exists()
    matter = ModelCard(published(grpo, to, adapter=True, base="someone/sft")).data
    assert read_json(to / "adapter_config.json")["base_model_name_or_path"] == "someone/sft"
    assert not (to / "model.safetensors").exists() and (to / "tokenizer.json").is_file()
    assert matter.base_model == "someone/sft" and matter.library_name == "peft"


def test_a_model_with_other_numbers_is_not_published(sft: Path, tmp_path: Path) -> None:
    to = tmp_path / "other"
    to.mkdir()
    model_files.write_model(sft / "model", to, "saved")
    assert same_model.require_same(sft / "model", to, "saved") == 0
    tensors = load_file(to / "model.safetensors")
    name = next(name for name in tensors if "o_proj" in name)
    tensors[name] += 1
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match="differ from those of the saved model"):
        same_model.require_same(sft / "model", to, "saved")


def test_a_failure_leaves_nothing_behind(sft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "render", lambda view, directory: "made in /home/someone/secret/place")
    with pytest.raises(DataError, match=r"a path of this machine \(/home/someone/secret/place\)"):
        publish(PublishRequest(str(sft), str(tmp_path / "model")))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_kept_and_an_adapter_is_asked_of_a_run_with_one(sft: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        publish(PublishRequest(str(sft), str(tmp_path / "mine")))
    with pytest.raises(ConfigError, match="without an adapter"):
        publish(PublishRequest(str(sft), str(tmp_path / "x"), adapter=True))


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("result.json", {"status": "paused", "error": "monitor"}, "is paused: monitor"),
        ("manifest.json", {"data": {"name": "x"}}, "has no entry for the fingerprint of its data"),
        ("manifest.json", {"versions": {}}, "has no entry for the version of the code"),
    ],
)
def test_a_run_that_is_not_whole_or_not_named_is_refused(
    changed: Any, file: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        publish(PublishRequest(str(changed(file, **values)), str(tmp_path / "model")))


def test_a_run_that_has_changed_since_or_has_no_model_is_refused(changed: Any, tmp_path: Path) -> None:
    directory = changed("result.json")
    request = PublishRequest(str(directory), str(tmp_path / "model"))
    (directory / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(ArtifactError, match="is damaged"):
        publish(request)
    (directory / seal.NAME).unlink()
    with pytest.raises(DataError, match=seal.NAME):
        publish(request)
    shutil.rmtree(directory / "model")
    with pytest.raises(DataError, match="has no model"):
        publish(request)


@pytest.mark.parametrize(
    ("file", "values", "reason"),
    [
        ("result.json", {"metrics": {"alarm/hard_stop": 1.0}}, "hard_stop"),
        ("result.json", {"metrics": {"audit/alarm": 1.0}}, "audit"),
        ("config.yaml", {"size": "smoke"}, "smoke"),
        ("manifest.json", {"git_sha": f"{SHA}+changes"}, "unnamed_code"),
    ],
)
def test_what_needs_consent_is_refused_without_it_and_told_with_it(
    grpo: Path, changed: Any, file: str, values: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    if reason == "hard_stop":  # a monitored run states all of these
        before = read_json(grpo / file)["metrics"]
        alarms = {"alarm/warning": 1.0, "alarm_share/hard_stop": 0.5, "alarm_at/hard_stop": 3, "alarm/hard_stop": 1.0}
        values = {"metrics": {**before, **alarms}}
    directory = changed(file, **values)
    with pytest.raises(DataError, match=f"despite={reason}"):
        publish(PublishRequest(str(directory), str(tmp_path / "model")))
    text = published(directory, tmp_path / "model", despite=[reason])
    assert f"Published although** {refusals.DESPITE[reason]}" in text


def test_a_failed_gate_needs_consent_and_a_gated_run_must_have_asked_this_model(
    sft: Path, grpo: Path, tmp_path: Path
) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("suite: strict\nmetrics:\n  heldout_nll: {max: 0.0, better: lower}\n")
    with pytest.raises(DataError, match="despite=failed_gate"):
        published(sft, tmp_path / "model", gate=str(suite))
    with pytest.raises(DataError, match="did not evaluate the model"):
        published(grpo, tmp_path / "model", gate=str(suite), gate_run=str(sft))
    text = published(sft, tmp_path / "model", gate=str(suite), despite=["failed_gate"])
    assert "Gate `strict`: failed: heldout_nll below bound" in text


def test_the_gated_run_may_name_the_model_by_its_directory(sft: Path, changed: Any, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("suite: lenient\nmetrics:\n  gold: {min: -1000.0}\n")
    need = {"recipe": None, "key": model_identity(str(sft / "model")), "dir": f"{sft}/model"}
    evaluated = changed("manifest.json", needs={"policy": need})
    shutil.rmtree(evaluated / "model")
    seal.write(evaluated, (evaluated / "result.json").read_text())
    assert "Gate `lenient`: passed" in published(sft, tmp_path / "model", gate=str(suite), gate_run=str(evaluated))


def test_leaks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and paths behind escapes, in addresses, in the metadata of weights, in vocabularies."""
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct-horse-battery")
    place = "/home/someone/place"
    texts = {
        "README.md": "see file:///srv/data/mine and https://host/srv/data/mine",
        "added_tokens.json": '{"x": "correct-horse-battery"}',
        "chat_template.jinja": "https://me:pass@host/x",
        "config.json": json.dumps({"note": f"first line\n{TYPED_KEY}"}),
        "evaluation.jsonl": "{}",
        "generation_config.json": '{"x": "\\u002fhome\\u002fsomeone\\u002fplace"}',
        "pytorch_model.bin": "\x80\x04",
        "special_tokens_map.json": json.dumps({"note": f"first line\n{place}"}),
        "tokenizer.json": json.dumps({"model": {"vocab": {TYPED_KEY: 1, "/home/linux/x": 2}}}),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    save_file({"w": torch.zeros(1)}, tmp_path / "a.safetensors", metadata={"source": place})
    save_file({"w": torch.zeros(1)}, tmp_path / "b.safetensors", metadata={"made by": f"login {TYPED_KEY}"})
    save_file({"w": torch.zeros(1)}, tmp_path / "c.safetensors", metadata={"format": "pt"})
    found = leaks(tmp_path)
    kinds = [f"{name} is not a type of file" for name in ("evaluation.jsonl", "pytorch_model.bin")]
    assert [line.partition(" that is published")[0] for line in found if "type of file" in line] == kinds
    assert [line for line in found if "type of file" not in line] == [
        "README.md contains a path of this machine (file:///srv/data/mine)",
        f"a.safetensors contains a path of this machine ({place})",
        "added_tokens.json contains the value of the environment variable MY_SERVICE_TOKEN",
        "b.safetensors contains a Hugging Face token",
        "chat_template.jinja contains a URL with a password",
        "config.json contains a Hugging Face token",
        f"generation_config.json contains a path of this machine ({place})",
        f"special_tokens_map.json contains a path of this machine ({place})",
        "tokenizer.json contains a Hugging Face token",
    ]


def test_a_typed_key_is_in_no_file_of_a_run(sft: Path) -> None:
    files = [path for path in sft.rglob("*") if path.is_file()]
    assert {"config.yaml", "manifest.json", "result.json"} <= {path.name for path in files}
    assert [path.name for path in files if TYPED_KEY.encode() in path.read_bytes()] == []
    assert yaml.safe_load((sft / "config.yaml").read_text())["question"] == "\u2026"


def test_paths_are_shortened_and_addresses_are_not() -> None:
    text = "needs.policy=/data/models/mine, ~/x/y, file:///a/b/c at https://huggingface.co/owner/name, docs/a.md or a/b"
    expected = "needs.policy=…/mine, …/y, …/c at https://huggingface.co/owner/name, docs/a.md or a/b"
    assert without_local_paths(text) == expected


def stub(*, private: bool) -> Any:
    """The hub's client with the real one's signatures. It keeps the files of an upload, which are removed after it."""
    api = create_autospec(HfApi, instance=True)
    api.create_repo.return_value = "https://hub.example/someone/model"
    api.repo_info.return_value.private = private
    api.sent = {}

    def upload(*, folder_path: str, **_: Any) -> None:
        api.sent |= {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}

    api.upload_folder.side_effect = upload
    return api


def test_nothing_is_sent_to_a_public_repository_unasked(sft: Path) -> None:
    api = stub(private=False)
    with pytest.raises(LabError, match="public=true"):
        publish(PublishRequest(str(sft), "hub:someone/model"), api=api)
    api.upload_folder.assert_not_called()
    publish(PublishRequest(str(sft), "hub:someone/model", public=True), api=api)
    assert api.create_repo.call_args.kwargs["private"] is False


def test_a_private_repository_gets_the_model_and_its_card_in_one_commit(sft: Path) -> None:
    api = stub(private=True)
    assert publish(PublishRequest(str(sft), "hub:someone/model"), api=api) == "https://hub.example/someone/model"
    assert api.create_repo.call_args.kwargs["private"] is True
    (upload,) = api.upload_folder.call_args_list
    assert upload.kwargs["repo_id"] == "someone/model" and SHA in upload.kwargs["commit_message"]
    assert "*.safetensors" in upload.kwargs["delete_patterns"]  # files of an earlier publication
    assert api.sent["model.safetensors"] == (sft / "model" / "model.safetensors").read_bytes()
    assert SHA in api.sent["README.md"].decode() and {"config.json", "tokenizer.json"} <= api.sent.keys()


def test_a_hub_that_refuses_is_explained(tmp_path: Path) -> None:
    api = stub(private=True)
    api.create_repo.side_effect = OSError("401 Client Error: Unauthorized")
    with pytest.raises(LabError, match=r"401.*hf auth login"):
        send(tmp_path, "someone/model", public=False, message="m", api=api)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a"], "publish needs a run"),
        (["a", "to=hub:name"], "to=hub:OWNER/NAME"),
        (["a", "to=x", "despite=smok"], "did you mean smoke"),
        (["a", "to=x", "dtype=float16"], "dtype=float16"),
        (["a", "to=x", "adapter=maybe"], "must be true or false"),
        (["a", "to=x", "public=true"], "applies to a repository on the hub"),
        (["a", "to=x", "tow=y"], "tow is not an option of publish"),
    ],
)
def test_a_wrong_command_is_explained(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        publish_command(words)


def test_the_command_hands_over_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[PublishRequest] = []
    monkeypatch.setattr("rlhf_lab.interop.publishing.publish.publish", lambda request: requests.append(request) or "x")
    publish_command(["runs/a", "to=hub:me/model", "public=true", "despite=smoke,hard_stop", "dtype=bfloat16"])
    assert requests == [
        PublishRequest("runs/a", "hub:me/model", dtype="bfloat16", public=True, despite=["smoke", "hard_stop"])
    ]
