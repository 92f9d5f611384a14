"""Parler-TTS itself, in its own environment: a tiny model with random weights samples, learns and is saved.

The codec model of the lab answers the same messages, and the recipe of codec models trains both.

The environment is created once and kept in the user's cache, or in $RLHF_LAB_PARLER. If it cannot be created, for
example without an index of packages, the tests are skipped and name the cause.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support import checked

from rlhf_lab.core.files import read_jsonl
from rlhf_lab.core.pinned_packages import EnvironmentMissing
from rlhf_lab.environments.splits import transcript
from rlhf_lab.losses.preference import PairLogps, dpo
from rlhf_lab.models.build import save_model
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.settings import LoRA, Scratch
from rlhf_lab.packs.speech.codec_dpo import codec_dpo
from rlhf_lab.packs.speech.parler import environment, model, worker  # noqa: F401  what the process runs can be imported
from rlhf_lab.packs.speech.parler.client import CodecWorker, LabCodec, Parler, SpeechPrompt, SpokenClip, WorkerFailed
from rlhf_lab.packs.speech.parler.rounds import DpoSettings, run_dpo
from rlhf_lab.packs.speech.policy.start import code_tokenizer, codec_policy
from rlhf_lab.packs.speech.world.speech import fitted_codec
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.execute import execute

pytestmark = pytest.mark.slow

INSTALL_S = 600
"""Seconds for installing the environment; after that the tests are skipped."""
PROMPTS = (
    SpeechPrompt("Good morning.", "A calm voice."),
    SpeechPrompt("No!", "An excited woman speaks fast in a large hall."),
)
UPSTREAM = Path(__file__).with_name("parler_upstream.py")


@pytest.fixture(scope="module")
def packages() -> Path:
    try:
        return environment.set_up(timeout_s=INSTALL_S).directory
    except EnvironmentMissing as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def client(packages):
    with Parler(directory=packages, max_frames=40, timeout_s=300) as started:
        yield started


@pytest.fixture(scope="module")
def tiny(client, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("parler") / "tiny"
    client.make_tiny(directory)
    return directory


@pytest.fixture
def parler(client, tiny):
    """With the tiny model in its initial state, and a new optimiser."""
    client.load(tiny)
    return client


def recorded(clips: list[SpokenClip]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities with which clips were sampled: of each code, and of each end."""
    return np.concatenate([clip.logps_TK for clip in clips]), np.array([clip.end_logp for clip in clips])


@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_log_probabilities_are_those_of_sampling(parler, temperature):
    """A pass over full clips against columns sampled one by one with a cache: the issue requires 1e-5 a token."""
    clips = parler.generate(PROMPTS, clips=6, seed=1, temperature=temperature)
    assert {clip.is_finished for clip in clips} == {True, False}
    logps = parler.logps(clips, temperature=temperature, with_graph=False)
    codes_FK, ends_N = recorded(clips)
    assert np.abs(codes_FK - logps.codes_FK.numpy()).max() < 1e-5
    assert np.abs(ends_N - logps.ends_N.numpy()).max() < 1e-5


def test_log_probabilities_of_clips_in_float64(packages, tiny):
    with Parler(tiny, directory=packages, dtype="float64", max_frames=40, timeout_s=300) as parler:
        clips = parler.generate(PROMPTS, clips=6, seed=1)
        logps = parler.logps(clips, with_graph=False)
    codes_FK, ends_N = recorded(clips)
    sampled_N = ends_N.copy()
    np.add.at(sampled_N, logps.clip_F.numpy(), codes_FK.sum(1))
    assert logps.clips_N.dtype == torch.float64
    assert np.abs(sampled_N - logps.clips_N.numpy()).max() < 1e-9


def test_the_columns_are_those_of_parlers_own_sampler(packages, tiny, tmp_path):
    """Logits of a pass over a clip against those of `generate`, which has its own delay pattern and cache."""
    variables = environment.process_environment(packages)
    command = [sys.executable, str(UPSTREAM), str(tiny), str(tmp_path / "result.json")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["frames"] == 12 and result["columns"] == 15
    assert result["difference"] < 1e-5
    assert result["same_audio"]


def test_gradients_reach_the_decoder_and_not_the_codec(parler):
    clips = parler.generate(PROMPTS, clips=2, seed=2)
    logps = parler.logps(clips)
    reference = PairLogps(*(logps.clips_N.detach()[side::2] for side in (0, 1)))
    before = dpo(PairLogps(logps.clips_N[0::2], logps.clips_N[1::2]), reference, beta=0.1)
    assert before.per_pair_B.tolist() == pytest.approx([np.log(2)] * 2)
    before.per_pair_B.mean().backward()
    norms = parler.step(lr=1e-3)
    assert norms["decoder"] > 0 and norms["enc_to_dec_proj"] > 0 and norms["embed_prompts"] > 0
    assert norms["audio_encoder"] == norms["text_encoder"] == 0
    after_N = parler.logps(clips, with_graph=False).clips_N
    after = dpo(PairLogps(after_N[0::2], after_N[1::2]), reference, beta=0.1)
    assert after.per_pair_B.mean() < np.log(2) and (after.margin_B > 0).all()


def test_gradients_of_two_passes_add_up(parler):
    """Micro-batches: the gradient of a sum is that of both passes together."""
    clips = parler.generate(PROMPTS, clips=1, seed=3)
    for clip in clips:
        parler.logps([clip]).clips_N.sum().backward()
    parts = parler.step(lr=1e-12)["all"]
    parler.logps(clips).clips_N.sum().backward()
    assert parler.step(lr=1e-12)["all"] == pytest.approx(parts, rel=1e-4)
    logps = parler.logps(clips)
    parler.step(lr=1e-12)
    with pytest.raises(WorkerFailed, match=r"backward: .* KeyError"):
        logps.clips_N.sum().backward()  # the weights that it was computed with are gone


def test_what_is_saved_is_what_is_loaded(parler, tmp_path):
    clips = parler.generate(PROMPTS, clips=2, seed=4)
    (-parler.logps(clips).clips_N.mean()).backward()
    parler.step(lr=1e-2)
    trained = parler.logps(clips, with_graph=False)
    audio = parler.decode(clips)
    parler.save(tmp_path / "trained")
    parler.load(tmp_path / "trained")
    again = parler.logps(clips, with_graph=False)
    assert torch.equal(trained.codes_FK, again.codes_FK) and torch.equal(trained.ends_N, again.ends_N)
    for before, after in zip(audio, parler.decode(clips), strict=True):
        np.testing.assert_array_equal(before.samples_N, after.samples_N)
        assert before.rate == 16000 and before.seconds > 0


def test_rounds_of_dpo_raise_the_reward(parler):
    """The reward is how short a clip is: the model learns to end."""
    words = ("One.", "Two words.", "Three.", "Four!", "Five, six.", "Seven?", "Eight.", "Nine.")
    prompts = [SpeechPrompt(text, "A calm voice.") for text in words]
    settings = DpoSettings(rounds=4, clips=8, beta=5.0, lr=3e-3, pairs_per_step=2, length="mean")

    def brevity(prompts, audio):
        return [-clip.seconds for clip in audio]

    rounds = list(run_dpo(parler, prompts, brevity, settings))
    assert [metrics.round for metrics in rounds] == [1, 2, 3, 4]
    assert rounds[-1].seconds < 0.7 * rounds[0].seconds
    assert rounds[-1].reward == pytest.approx(-rounds[-1].seconds)


@pytest.mark.long
def test_the_command_trains_and_continues_after_an_interruption(packages, tiny, tmp_path):
    """The reward fails in the second round; the same command then goes on from the first, to the same weights."""
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt._asdict()) + "\n" for prompt in PROMPTS))
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "from pathlib import Path\n\n"
        "def brevity(prompts, audio):\n"
        "    calls = Path(os.environ['CALLS'])\n"
        "    calls.write_text(calls.read_text() + 'x')\n"
        "    if calls.read_text() == os.environ['FAILS_AT']:\n"
        "        raise RuntimeError('no recogniser')\n"
        "    return [-clip.seconds for clip in audio]\n"
    )
    options = {
        "model": tiny,
        "prompts": tmp_path / "prompts.jsonl",
        "reward": f"{tmp_path / 'mine.py'}:brevity",
        "folder": packages,
        "rounds": 2,
        "clips": 12,
        "max_frames": 40,
        "lr": 1e-3,
    }

    def run(to: str, *, fails_at: str = "never", **changed) -> subprocess.CompletedProcess[str]:
        calls = tmp_path / f"calls_{to}"
        calls.touch()
        words = [f"{name}={value}" for name, value in {**options, "to": tmp_path / to, **changed}.items()]
        command = [sys.executable, "-m", "rlhf_lab", "parler", "dpo", *words]
        variables = {**os.environ, "CALLS": str(calls), "FAILS_AT": fails_at}
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)

    whole = run("whole")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    rows = read_jsonl(tmp_path / "whole" / "rounds.jsonl")
    assert [row["round"] for row in rows] == [1, 2] and rows[0]["pairs"] > 0 and 0.69 < rows[0]["loss"] < 0.7
    assert not (tmp_path / "whole" / "model" / "optimizer.pt").exists()

    stopped = run("resumed", fails_at="xx")
    assert stopped.returncode == 1 and "no recogniser" in stopped.stdout + stopped.stderr
    assert len(read_jsonl(tmp_path / "resumed" / "rounds.jsonl")) == 1
    other = run("resumed", lr=1e-4)
    assert other.returncode == 2 and "other values of lr" in other.stdout
    resumed = run("resumed")
    assert resumed.returncode == 0 and "continuing after round 1 of 2" in resumed.stdout
    assert read_jsonl(tmp_path / "resumed" / "rounds.jsonl") == rows
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "resumed")]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert "all 2 rounds are finished" in run("resumed").stdout
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    refused = run("mine")
    assert refused.returncode == 2 and "is not empty" in refused.stdout


@pytest.fixture(scope="module")
def lab_codec(tmp_path_factory):
    """The lab's own codec model behind the same protocol, with random weights."""
    directory = tmp_path_factory.mktemp("codec")
    codec = fitted_codec((32, 32, 32, 32))
    codec.save(directory / "codec")
    tokenizer = code_tokenizer([transcript("calm : ta ko"), transcript("lively : ma")], codec.sizes)
    settings = Scratch(family="codec", hidden=16, layers=1, heads=2, min_frames=2)
    policy = codec_policy(settings, tokenizer, 0, codec.sizes, codec.fingerprint)
    save_model(policy, Encoder(tokenizer), directory / "model")
    with LabCodec(directory / "model", codec=directory / "codec", max_frames=12, timeout_s=300) as started:
        yield started


def answers(worker: CodecWorker, prompts: list[SpeechPrompt], directory: Path) -> dict:
    """Verb → names of the values, and name, dtype and number of dimensions of the arrays, of each answer."""
    seen = {}
    ask = worker._ask

    def recording(verb, *arguments):
        values, arrays = ask(verb, *arguments)
        seen[verb] = (sorted(values), {name: (str(array.dtype), array.ndim) for name, array in arrays.items()})
        return values, arrays

    worker._ask = recording
    try:
        worker.add_adapter(LoRA(rank=2), seed=0)
        clips = worker.generate(prompts, clips=4, seed=1)
        logps = worker.logps(clips)
        codes_FK, ends_N = recorded(clips)
        # the log-probabilities are those of the codes that were sampled
        assert np.abs(codes_FK - logps.codes_FK.detach().numpy()).max() < 1e-5
        assert np.abs(ends_N - logps.ends_N.detach().numpy()).max() < 1e-5
        assert worker.kl(clips).tolist() == [0.0] * len(clips)  # a new adapter changes nothing
        (-logps.clips_N.mean()).backward()
        worker.step(lr=1e-2)
        assert (worker.kl(clips) > 0).all()
        audio = worker.decode(clips)
        assert all(sound.rate == worker.rate and len(sound.samples_N) for sound in audio)
        worker.save_adapter(directory / "adapter", with_optimizer=True)
        worker.load_adapter(directory / "adapter")
        worker.load_optimizer(directory / "adapter")
        trained = worker.logps(clips, with_graph=False).clips_N
        worker.save(directory / "model")
        worker.load(directory / "model")  # the adapter is merged
        assert torch.allclose(worker.logps(clips, with_graph=False).clips_N, trained, atol=1e-3)
    finally:
        worker._ask = ask
    # the gradient norms of `step` are named after the parts of the model, apart from that of all of it
    assert "all" in seen["step"][0]
    del seen["step"]
    return seen


def test_both_codec_models_answer_the_same_messages(parler, lab_codec, tmp_path):
    spoken = [SpeechPrompt("ta ko", "calm"), SpeechPrompt("ma", "lively")]
    theirs = answers(parler, list(PROMPTS), tmp_path / "parler")
    ours = answers(lab_codec, spoken, tmp_path / "codec")
    assert ours == theirs
    assert set(ours) == {*worker.VERBS} - {"make_tiny", "step"}


@pytest.mark.usefixtures("packages")
def test_a_recipe_trains_parler_and_resumes(tiny, tmp_path, monkeypatch):
    """The recipe of the lab's codec model, with another model: same stage, same files, without the world's gold."""
    small = ("evaluation.prompts=3", "evaluation.samples_per_prompt=2", "data.train_pairs=24", "data.test_pairs=12")
    settings = ("algorithm.rounds=2", "algorithm.prompts_per_round=3", "algorithm.max_frames=24", "algorithm.lr=1e-3")

    def planned(outputs: str) -> artifacts.Stage:
        parts = ("model=parler", f"model.path={tiny}", "data=speech_small", "reward=acoustic", f"outputs={tmp_path}/")
        config = checked("tts_codec_dpo", *parts[:-1], *small, *settings, f"{parts[-1]}{outputs}")
        return artifacts.plan(config, "tts_codec_dpo")

    whole, stopped = planned("whole"), planned("stopped")
    assert list(whole.upstream()) == [whole], "the policy of the recipe is left out"
    assert "policy" not in whole.sources()
    result = execute(whole)
    last = result["policies"][-1]
    assert last["name"] == "round 2" and last["metrics"]["kl"]["mean"] > 0
    assert "gold" not in last["metrics"] and np.isfinite(last["metrics"]["proxy"]["mean"])
    assert 0 < result["metrics"]["parameters/trained"] < result["metrics"]["parameters"]
    assert any((whole.directory / "clips").glob("round_2-*.wav"))

    real, indices = codec_dpo.run_round, []

    def interrupted(served, prompts, scorer, rounds, index):
        indices.append(index)
        if indices == [0, 1]:
            raise KeyboardInterrupt
        return real(served, prompts, scorer, rounds, index)

    monkeypatch.setattr(codec_dpo, "run_round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute(stopped)
    execute(stopped)
    assert indices == [0, 1, 1]
    for name in ("adapter/adapter_model.safetensors", "model/model.safetensors"):
        uninterrupted, resumed = load_file(whole.directory / name), load_file(stopped.directory / name)
        assert all(torch.equal(tensor, resumed[key]) for key, tensor in uninterrupted.items())
