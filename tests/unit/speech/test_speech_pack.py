"""Additions of the pack to the core: criteria of clips, a family of models, a gate, pins, WAV files of a renderer."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from support import checked, planned
from synthetic_runs import write_run
from transformers import AutoConfig

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.media import Audio
from rlhf_lab.core.packs import load, packs
from rlhf_lab.interop.publishing.card import _loading
from rlhf_lab.memory.devices import GIB, Device
from rlhf_lab.memory.plan import plan_stage
from rlhf_lab.memory.show import stage_lines
from rlhf_lab.models.families import families, family_of, names
from rlhf_lab.packs.speech import PACK
from rlhf_lab.packs.speech.parler.environment import PARLER
from rlhf_lab.packs.speech.policy.family import CODEC
from rlhf_lab.packs.speech.report import acoustics
from rlhf_lab.packs.speech.rewards.criteria import SPEECH
from rlhf_lab.packs.speech.rewards.settings import FEATURES, HAND_WEIGHTS, IntelligibilityTerm
from rlhf_lab.packs.speech.sound.audio import read_audio
from rlhf_lab.packs.speech.sound.codec import StreamRenderer
from rlhf_lab.results.rundir import read_run
from rlhf_lab.rewards.combine import combine, unverified
from rlhf_lab.rewards.criteria.sets import criteria_of
from rlhf_lab.rewards.rules.settings import Gold
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.statistics.estimates import Estimate


def test_it_is_found_and_what_it_names_is_there():
    assert PACK in packs()
    references = [*PACK.commands.values(), *PACK.answers.values(), *PACK.reward_files.values(), *PACK.criteria]
    assert {"rlhf_lab.packs.speech.commands:parler_command", "rlhf_lab.packs.speech.report:recognised_phones"} <= {
        *references
    }
    for reference in (*references, CODEC.new_policy, CODEC.decoder):
        assert callable(load(reference)), reference


def test_criteria_of_clips_are_the_acoustic_features():
    assert tuple(SPEECH) == FEATURES
    assert {name: weight for name, weight in SPEECH.items() if weight} == HAND_WEIGHTS
    found = criteria_of(SimpleNamespace(name="speech", renderer=object()))
    assert found.domain == "speech" and found.names == FEATURES


def test_a_model_in_a_worker_process_is_not_planned():
    """The plan used to count the sampler of a model of the lab, and said that the stage fits."""
    plan = plan_stage(planned("tts_codec_dpo"))
    device = Device("a GPU", 16 * GIB, count=1, cuda=True)
    assert plan.sampler is None
    [line] = stage_lines(plan, device)
    assert "worker process" in line and "fits" not in line
    assert stage_lines(plan_stage(planned("tts_reward")), device) == ["no language model is loaded"]


def test_the_codec_is_a_family_of_models():
    assert families()["codec"] is CODEC is family_of("rlhf_lab_codec")
    assert names() == ("llama", "gpt2", "codec") and family_of("llama") is None
    with pytest.raises(ConfigError, match="codek is not one of llama, gpt2, codec; did you mean codec"):
        checked("tts_sft", "model.family=codek")
    with pytest.raises(ConfigError, match="vLLM does not support the codec models of rlhf_lab"):
        checked("grpo", "rollout=vllm", "rollout.mode=spawn", "model=codec", "data=speech_small")


@pytest.mark.parametrize("adapter", [False, True])
def test_the_card_of_a_codec_model_loads_it_without_naming_a_module_that_may_move(tmp_path, adapter):
    """Cards of earlier versions contain `import rlhf_lab.models.codec_lm`, a module that has moved since."""
    model, published = tmp_path / "model", tmp_path / "published"
    model.mkdir()
    published.mkdir()
    (model if adapter else published).joinpath("config.json").write_text('{"model_type": "rlhf_lab_codec"}')
    request = SimpleNamespace(adapter=adapter, name="x/voice", dtype="saved")
    view = SimpleNamespace(request=request, provenance=SimpleNamespace(model_dir=model))
    code = "\n".join(_loading(view, published)).split("```python\n")[1].split("```")[0]
    assert "rlhf_lab.packs" not in code
    before_loading = code[: code.index("base =" if adapter else "model =")]
    imports = [line for line in before_loading.splitlines() if "peft" not in line]
    exec("\n".join(imports), {})  # every name is there
    assert type(AutoConfig.for_model("rlhf_lab_codec")).__module__ == CODEC.module


def test_a_renderer_writes_what_a_browser_plays(tmp_path):
    renderer = StreamRenderer(SimpleNamespace(fingerprint="abc", sizes=()))
    renderer.write(tmp_path / "a.wav", Audio(0.3 * np.sin(np.arange(8000, dtype=np.float32)), 16_000))
    assert read_audio(tmp_path / "a.wav").seconds == pytest.approx(0.5)


def test_pins_of_parler_are_exact():
    lines = PARLER.requirements.read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert pinned and all(line.count("==") == 1 for line in pinned)


@pytest.mark.parametrize(
    ("weight", "at_floor", "rest_at_floor"),
    [
        (0.0, 1.0, 0.0),
        (1.0, 0.5, -0.5),  # 1 − ½
    ],
)
def test_what_a_gate_gives_is_not_the_outcome(weight, at_floor, rest_at_floor):
    """A response below the floor is worth −3 whatever is right about it: outcome 0, and −3 added. One at it passes."""
    settings = RewardGraph(terms={"gold": Gold(), "gate": IntelligibilityTerm(weight=weight, floor=-0.5, below=-3.0)})
    parts = {"gold": np.ones(4), "gate": np.array([0.0, -0.9, -0.5, np.nan])}
    reward_N = combine(parts, settings)
    assert reward_N[:3].tolist() == [1.0, -3.0, at_floor]
    assert np.isnan(reward_N[3])  # a response that the gate leaves unscored has not passed it
    assert unverified(reward_N, parts, settings)[:3].tolist() == [0.0, -3.0, rest_at_floor]


def test_the_code_of_the_codec_family_counts_in_every_stage_that_uses_its_model():
    for stage in planned("tts_dpo").upstream():
        files = {label.partition(":")[0] for label in stage.code}
        parts = ("codec_lm", "decoder", "start")
        missing = {f"rlhf_lab/packs/speech/policy/{part}.py" for part in parts} - files
        assert not missing, stage.recipe
    for stage in planned("dpo").upstream():
        assert not [label for label in stage.code if "packs/speech/" in label], stage.recipe


@pytest.mark.parametrize(
    ("words", "file", "counts"),
    [
        (("criteria_fitted",), "criteria.py:criteria_of", True),
        (("rm_probe",), "criteria.py:criteria_of", True),
        (("best_of_n", "reward=design", "needs.reward=null", "+needs.design=sft"), "acoustic_rm.py:from_folder", True),
        (("best_of_n",), "acoustic_rm.py:from_folder", False),
    ],
)
def test_the_code_of_criteria_and_of_reward_files_counts_in_stages_that_use_them(words, file, counts):
    """They are named in the pack as text, which the digest of a stage's code does not follow."""
    assert (f"rlhf_lab/packs/speech/rewards/{file}" in planned(*words).code) == counts


def test_every_group_of_numbers_is_a_figure(tmp_path):
    directory = write_run(tmp_path, policies=())
    result = json.loads((directory / "result.json").read_text())
    estimate = Estimate(0.2, 0.1, 0.3, 200, 100).to_dict()

    def acoustics_of(*names):
        metrics = dict.fromkeys(names, estimate)
        (directory / "result.json").write_text(json.dumps(result | {"metrics": metrics}))
        return acoustics(read_run(directory))

    assert acoustics_of("accuracy") is None
    section = acoustics_of("accuracy", "feature_spearman/hnr", "feature_spearman/pitch_sd", "phone_error/chosen")
    assert [figure.title for figure in section.figures] == [
        "Rank correlation of features with the truth, held-out clips",
        "Phone errors of the recogniser, held-out clips",
    ]
