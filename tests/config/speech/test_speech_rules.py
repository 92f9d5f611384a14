"""Speech and models of codes belong together; what reads words with a scalar head does not listen."""

import pytest
from support import checked

from rlhf_lab.config import inventory, matching, registry
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.rewards.term import TermSettings


def problems(*overrides):
    with pytest.raises(ConfigError) as caught:
        checked(*overrides)
    return str(caught.value)


def why_refused(*overrides):
    """The message of a command that is refused, and "" for one that is accepted."""
    try:
        checked(*overrides)
    except ConfigError as error:
        return str(error)
    return ""


def test_speech_with_a_model_of_codes_is_accepted():
    assert checked("tts_sft").model.family == "codec"
    assert checked("tts_dpo", "algorithm.logps=per_codebook").algorithm.logps == "per_codebook"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sft", "data=speech"], "set model=codec"),
        (["sft", "model=codec"], "model.family=codec generates the codes of audio, but data=mini_hh is text"),
        (["reward_model", "data=speech", "model=codec", "needs.policy=tts_sft"], "needs responses that are text"),
        (["dpo", "algorithm.logps=per_codebook"], "has no codebooks; use logps=sum"),
        (["dpo_iterative", "reward=acoustic"], "needs responses that are audio, which data=mini_hh does not have"),
        (["tts_dpo", "data=espeak"], "reward=intelligibility needs the phones that each response should say, which"),
        (["tts_recogniser", "data=espeak"], "algorithm=recogniser needs the phones that each response should say"),
        (["tts_grpo", "reward=bt", "+needs.reward=reward_model"], "reward=bt needs responses that are text, which"),
        (["tts_grpo", "reward=gold", "engine=trl"], "a codec model counts its columns"),
        (["sft", "model.min_frames=3"], "min_frames=3 is used only with family=codec"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, message):
    assert message in problems(*overrides)


REQUIRED_SETTINGS = {
    "callable": ["reward.terms.callable.function=mine.py:brevity"],
    "remote": ["reward.terms.remote.url=http://127.0.0.1:1"],
}
"""Settings that a term requires in addition to its name."""


@pytest.mark.slow
def test_every_reward_that_reads_text_is_refused_for_audio():
    refused = {}
    for kind in registry.kinds("reward"):
        if kind in inventory.option_files("reward"):
            message = why_refused("tts_grpo", f"reward={kind}", *REQUIRED_SETTINGS.get(kind, []))
            refused[kind] = f"reward={kind} needs responses that are text" in message
    assert {"calculator", "code_quality", "json", "math", "remote", "bt"} < {
        k for k, is_refused in refused.items() if is_refused
    }
    for kind, is_refused in refused.items():
        requires = registry.settings_class("reward", kind).requires
        assert is_refused == (Capability.TEXT in requires), kind
    # `design` is made for text or for clips: study/reward_transfer_speech scores clips with it.
    assert {kind for kind, is_refused in refused.items() if not is_refused} == {
        *("acoustic", "acoustic_rm", "dnsmos", "intelligibility", "wav2vec2"),
        *("gold", "environment", "callable", "design"),
    }


def test_a_reward_of_a_plug_in_reads_text_unless_it_says_otherwise(monkeypatch):
    """Its settings inherit `requires`, which the check reads; no list of names has to know them."""
    assert "reward=length needs responses that are text" in why_refused("tts_grpo", "reward=length")
    monkeypatch.setattr(registry.settings_class("reward", "length"), "requires", ())
    assert "reward=length" not in why_refused("tts_grpo", "reward=length")
    assert TermSettings.requires == (Capability.TEXT,)


def test_suggestions_come_from_the_registry():
    listener = matching.RunPart("reward=acoustic", (Capability.AUDIO,), "reward")
    assert matching.suitable_data(listener) == ["espeak", "speech", "speech_small"]
    recogniser = matching.RunPart("algorithm=recogniser", (Capability.AUDIO, Capability.PHONES), "algorithm")
    assert matching.suitable_data(recogniser) == ["speech", "speech_small"]
    # Data that suit every part of the run come before data that suit one of them.
    assert matching.suitable_data(listener, [recogniser]) == ["speech", "speech_small"]
    # Of the options that work with these data, those that need the most of them come first.
    unpaired = Capability.TEXT | Capability.SINGLE_TURN | Capability.UNPAIRED
    assert "kto" in matching.suitable_options("algorithm", unpaired)
    assert matching.suitable_options("reward", Capability.AUDIO | Capability.PHONES)[0] == "intelligibility"
