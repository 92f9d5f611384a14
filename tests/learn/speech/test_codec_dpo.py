"""`algorithm=codec_dpo` at a tiny size, with the lab's codec model in its worker: learning, resuming, guards."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import sizes
import torch
from safetensors.torch import load_file
from support import checked

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.core.media import Audio
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.environments.splits import transcript
from rlhf_lab.packs.speech import preflight
from rlhf_lab.packs.speech.codec_dpo import codec_dpo
from rlhf_lab.packs.speech.codec_dpo.codec_dpo import ClipJudge
from rlhf_lab.packs.speech.codec_dpo.settings import CodecDPO
from rlhf_lab.packs.speech.parler.client import SpeechPrompt, SpokenClip
from rlhf_lab.packs.speech.parler.environment import PARLER
from rlhf_lab.packs.speech.parler.settings import ParlerTTS
from rlhf_lab.packs.speech.world.settings import Speech
from rlhf_lab.packs.speech.world.speech import SpeechWorld
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.execute import execute

SMALL = (
    *("reward=acoustic", "model.hidden=16", "model.layers=1", "model.heads=2", "runtime.threads=1"),
    *("data=speech_small", "data.train_pairs=32", "data.test_pairs=16"),
    *("evaluation.prompts=4", "evaluation.samples_per_prompt=2"),
    *("algorithm.rounds=2", "algorithm.prompts_per_round=6", "algorithm.max_frames=12"),
)


def planned(directory, *overrides: str) -> artifacts.Stage:
    """The stage, after the policy that it starts from has been built."""
    config = checked("tts_codec_dpo", *SMALL, *overrides, f"outputs={directory}")
    stage = artifacts.plan(config, "tts_codec_dpo")
    for part in stage.upstream():
        if part is not stage and part.result() is None:
            execute(part)
    return stage


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("codec_dpo")


@pytest.fixture(scope="module")
def stage(directory):
    stage = planned(directory)
    execute(stage)
    return stage


def test_the_recipe_needs_only_the_policy_with_a_reward_without_models():
    config = checked("tts_codec_dpo", "reward=acoustic")
    assert set(artifacts.plan(config, "tts_codec_dpo").needs) == {"policy"}
    assert sizes.overrides("tts_codec_dpo")


@pytest.mark.slow
def test_what_a_run_leaves(stage):
    rows = read_jsonl(stage.directory / "metrics.jsonl")
    assert [row["round"] for row in rows] == [1, 2]
    assert all(0 < row["pairs"] <= 6 and row["grad_norm"] > 0 for row in rows)
    assert rows[0]["reward_worst"] < rows[0]["reward"] < rows[0]["reward_best"]
    result = read_json(stage.directory / "result.json")
    assert [policy["name"] for policy in result["policies"]] == ["SFT", "round 1", "round 2"]
    kl = [policy["metrics"]["kl"]["mean"] for policy in result["policies"]]
    assert kl[0] == 0 and kl[1] > 0 and kl[2] > 0
    assert {"gold", "proxy", "phone_error"} <= result["policies"][-1]["metrics"].keys()
    assert result["metrics"]["parameters/trained"] < result["metrics"]["parameters"]
    evaluated = read_jsonl(stage.directory / "evaluation.jsonl")
    assert len(evaluated) == 3 * 4 * 2
    assert all((stage.directory / row["clip"]).is_file() for row in evaluated if "clip" in row)
    adapter = load_file(stage.directory / "adapter" / "adapter_model.safetensors")
    assert sum(tensor.numel() for tensor in adapter.values()) == result["metrics"]["parameters/trained"]
    assert (stage.directory / "model" / "config.json").is_file() and not (stage.directory / "progress").exists()


@pytest.mark.slow
def test_the_result_is_a_policy_of_the_lab(stage, directory):
    """Another recipe may start from it: its weights are those of the start plus the adapter."""
    trained = checked("tts_codec_dpo", *SMALL, f"needs.policy={stage.directory / 'model'}", f"outputs={directory}")
    assert artifacts.plan(trained, "tts_codec_dpo").settings_key != stage.settings_key
    merged = load_file(stage.directory / "model" / "model.safetensors")
    start = load_file(f"{stage.needs['policy'].model}/model.safetensors")
    changed = {name for name, tensor in merged.items() if not torch.equal(tensor, start[name])}
    assert changed and all(name.endswith("_proj.weight") for name in changed)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [8, 0])
def test_an_interrupted_run_resumes_to_the_same_weights(rank, directory, tmp_path, monkeypatch):
    whole, stopped = planned(directory, f"model.lora.rank={rank}"), planned(tmp_path, f"model.lora.rank={rank}")
    if whole.result() is None:
        execute(whole)
    rounds = []
    real = codec_dpo.run_round

    def fails_in_the_second_round(worker, prompts, scorer, settings, index):
        rounds.append(index)
        if index == 1 and rounds.count(1) == 1:
            raise KeyboardInterrupt
        return real(worker, prompts, scorer, settings, index)

    monkeypatch.setattr(codec_dpo, "run_round", fails_in_the_second_round)
    with pytest.raises(KeyboardInterrupt):
        execute(stopped)
    assert read_json(stopped.directory / "result.json")["status"] == "interrupted"
    result = execute(stopped)
    assert rounds == [0, 1, 1]
    assert "resumed after round 1" in result["notes"]
    names = ["model", "adapter"] if rank else ["model"]
    for name in names:
        (file,) = (whole.directory / name).glob("*.safetensors")
        uninterrupted, resumed = load_file(file), load_file(stopped.directory / name / file.name)
        assert uninterrupted.keys() == resumed.keys()
        assert all(torch.equal(tensor, resumed[key]) for key, tensor in uninterrupted.items())
    logged = [
        [{key: value for key, value in row.items() if key != "time"} for row in read_jsonl(d / "metrics.jsonl")]
        for d in (whole.directory, stopped.directory)
    ]
    assert logged[0] == logged[1]
    assert result["policies"] == read_json(whole.directory / "result.json")["policies"]


@pytest.mark.slow
def test_a_run_killed_after_its_last_round_trains_nothing_again(tmp_path, monkeypatch):
    """The progress stays until the result is recorded."""
    stopped = planned(tmp_path, "algorithm.rounds=1")
    real = codec_dpo.CodecRounds._save

    def saves_and_is_killed(self, *arguments):
        real(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(codec_dpo.CodecRounds, "_save", saves_and_is_killed)
        execute(stopped)
    monkeypatch.setattr(codec_dpo, "run_round", lambda *arguments: pytest.fail("the round is not trained again"))
    assert "resumed after round 1" in execute(stopped)["notes"]
    assert not (stopped.directory / "progress").exists()


def clip(code: int) -> SpokenClip:
    return SpokenClip(SpeechPrompt("ta", "low"), np.full((2, 2), code), True, np.zeros((2, 2)), -0.5)


@pytest.fixture
def judge():
    """A judge whose reward is the mean sample of a clip, with a gate that refuses clips above 0.25."""
    data = SimpleNamespace(task=lambda prompt: SimpleNamespace(prompt=prompt, metadata={}))
    gates = {"quiet": SimpleNamespace(floor=-0.25)}
    run = SimpleNamespace(data=data, config=SimpleNamespace(reward=SimpleNamespace(gates=gates)))
    audio = codec_dpo.ServedAudio((4, 4), SimpleNamespace(render=lambda responses: ["of the data"] * len(responses)))

    def reward(episodes):
        means_N = np.array([sound.samples_N.mean() for sound in audio.render([e.response for e in episodes])])
        return RewardBatch(np.where(means_N > 0.45, np.nan, means_N), {"quiet": -means_N})

    return ClipJudge(run, audio, reward)


def sound(level: float, rate: int = 16_000) -> Audio:
    return Audio(np.full(rate // 10, level, np.float32), rate)


def test_gates_of_the_reward_are_the_guard(judge):
    scores = judge(["p"] * 3, [clip(0), clip(1), clip(2)], [sound(0.1), sound(0.2), sound(0.3)])
    assert scores.scores_N == pytest.approx([0.1, 0.2, 0.3])
    assert scores.is_refused_N.tolist() == [False, False, True]
    with pytest.raises(DataError, match="the reward did not score a clip of 'p'"):
        judge(["p"], [clip(3)], [sound(0.5)])


def test_audio_of_a_worker_is_resampled_and_other_responses_are_those_of_the_data(judge):
    episodes = codec_dpo.episodes_of(judge.run.data, ["p"], [clip(1)])
    judge.audio.keep([episodes[0].response], [sound(0.2, rate=44_100)])
    own, other = judge.audio.render([episodes[0].response, "b1"])
    assert own.rate == 16_000 and own.seconds == pytest.approx(0.1) and other == "of the data"
    assert episodes[0].response == "a1 b. a1 b1 a. b1" and episodes[0].sampled_tokens == 5


def test_prompts_of_both_kinds_of_models():
    world = SpeechWorld(Speech(codebooks=(32, 32, 32, 32)))
    prompt = transcript("low dark lively question : ta ko ma ne")
    for model, description in (
        (("model=codec",), "low dark lively question"),
        (("model=parler", "model.path=a/b"), "low dark voice, lively: wide pitch movement, a little fast and loud"),
    ):
        config = checked("tts_codec_dpo", *model, "reward=acoustic")
        run = SimpleNamespace(data=SimpleNamespace(oracle=world, name="speech"), config=config)
        assert codec_dpo.prompt_reader(run)(prompt) == SpeechPrompt("ta ko ma ne", description)
    run.data = SimpleNamespace(oracle=None, name="mini_hh")
    with pytest.raises(ConfigError, match="needs the prompts of a speech world, which data=mini_hh does not have"):
        codec_dpo.prompt_reader(run)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("needs.policy=null",), "needs.policy is not set, but algorithm=codec_dpo with model=scratch starts from it"),
        (("model.weights=nf4",), "model.weights=nf4: the workers of algorithm=codec_dpo use float32 or bfloat16"),
        (("model=parler",), "set model.path=DIR or a hub id"),
        (("model=parler", "model.path=a/b", "algorithm=dpo_iterative"), "model=parler runs in a worker process"),
    ],
)
def test_wrong_settings_are_named(overrides, says):
    with pytest.raises(ConfigError) as error:
        checked("tts_codec_dpo", *overrides)
    assert any(says in problem for problem in error.value.problems), error.value.problems


def test_the_environment_of_parler_is_checked_before_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv(PARLER.variable, str(tmp_path / "absent"))
    config = checked("tts_codec_dpo", "model=parler", "model.path=a/b", "reward=acoustic")
    assert isinstance(config.model, ParlerTTS) and isinstance(config.algorithm, CodecDPO)
    assert config.algorithm.max_frames == 860 and checked("tts_codec_dpo").algorithm.max_frames == 64
    (problem,) = preflight.problems(config)
    assert problem.startswith("model=parler: ") and "parler setup" in problem
    assert preflight.problems(checked("tts_codec_dpo")) == []


@pytest.mark.slow
def test_gold_proxy_and_phone_errors_come_by_category_with_intervals(tmp_path):
    """In rounds of DPO on codec tokens in this process (`algorithm=dpo_iterative`)."""
    config = checked("tts_dpo", *sizes.overrides("tts_dpo"), "evaluation.prompts=12", f"outputs={tmp_path}")
    stage = artifacts.plan(config, "tts_dpo")
    for part in stage.upstream():
        execute(part)
    last = read_json(stage.directory / "result.json")["policies"][-1]["metrics"]
    assert {"gold", "proxy", "phone_error", "audio_seconds", "gold/new_voice", "proxy/new_voice"} <= last.keys()
    rows = [row for row in read_jsonl(stage.directory / "evaluation.jsonl") if row["policy"] == "iteration 2"]
    for category in {row["category"] for row in rows}:
        golds = [row["gold"] for row in rows if row["category"] == category]
        estimate = last[f"gold/{category}"]
        assert estimate["mean"] == pytest.approx(sum(golds) / len(golds)) and estimate["n"] == len(golds)
        if estimate["clusters"] > 1:  # one prompt has no interval
            assert estimate["low"] <= estimate["mean"] <= estimate["high"]
