"""Speech and models of codes belong together; what reads words with a scalar head does not listen."""

from pathlib import Path

import pytest
from support import checked

from rlhf_lab.config import registry
from rlhf_lab.config.hearing import HEAR_PHONES, audible
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.rewards.term import TermSettings

CONF = Path(__file__).resolve().parents[2] / "conf" / "reward"


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
        (["sft", "data=speech"], "use model=codec"),
        (["sft", "model=codec"], "model.family=codec says the codes of audio; data=mini_hh is text"),
        (
            ["reward_model", "data=speech", "model=codec", "needs.policy=tts_sft"],
            "algorithm=reward_model reads replies with a scalar head",
        ),
        (
            ["ppo", "data=speech", "model=codec", "needs.policy=tts_sft", "reward=gold"],
            "algorithm=ppo reads replies with a scalar head",
        ),
        (["dpo", "algorithm.logps=per_codebook"], "has no codebooks; use sum"),
        (["dpo_iterative", "reward=acoustic"], "needs data=espeak or data=speech"),
        (["tts_dpo", "data=espeak"], "reward=intelligibility hears the phones of a text"),
        (["tts_recogniser", "data=espeak"], "algorithm=recogniser hears the phones of a text"),
        (["tts_grpo", "reward=bt", "+needs.reward=reward_model"], "reward=bt reads replies"),
        (["tts_grpo", "reward=gold", "engine=trl"], "a codec's model counts its columns"),
        (["sft", "model.min_frames=3"], "min_frames=3 is read by family=codec"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, message):
    assert message in problems(*overrides)


REQUIRED_SETTINGS = {
    "callable": ["reward.terms.callable.name=brevity"],
    "remote": ["reward.terms.remote.url=http://127.0.0.1:1"],
}
"""What a term needs beside its name for its settings to be made."""


def test_every_reward_that_reads_text_is_refused_for_audio():
    kinds = {kind: registry.settings_class("reward", kind).reads for kind in registry.kinds("reward")}
    refused = {}
    for kind in kinds:
        if (CONF / f"{kind}.yaml").is_file():
            message = why_refused("tts_grpo", f"reward={kind}", *REQUIRED_SETTINGS.get(kind, []))
            refused[kind] = f"reward={kind} reads replies as text, and those of data=speech are audio" in message
    assert {"calculator", "code_quality", "json", "math", "remote", "bt", "design"} < refused.keys()
    assert refused == {kind: kinds[kind] == "text" for kind in refused}
    # `design` is made for text or for clips: study/reward_transfer_speech scores clips with it.
    assert {kind for kind, is_refused in refused.items() if not is_refused} == {
        *("acoustic", "acoustic_rm", "intelligibility", "wav2vec2", "gold", "environment", "callable", "design"),
    }


def test_a_reward_of_a_plug_in_reads_text_unless_it_says_otherwise(monkeypatch):
    """Its settings inherit `reads`, which the check asks; no list of names has to know them."""
    assert "reward=length reads replies as text" in why_refused("tts_grpo", "reward=length")
    monkeypatch.setattr(registry.settings_class("reward", "length"), "reads", "any")
    assert "reads replies as text" not in why_refused("tts_grpo", "reward=length")
    assert TermSettings.reads == "text"


def test_what_can_be_heard_is_what_is_audio():
    assert audible("reward=acoustic") == "data=espeak or data=speech"
    assert [audible(part) for part in HEAR_PHONES] == ["data=speech", "data=speech"]
