"""Speech and models of codes belong together; what reads words with a scalar head does not listen."""

import pytest
from support import checked

from rlhf_lab.config.hearing import HEAR_PHONES, audible
from rlhf_lab.core.errors import ConfigError


def problems(*overrides):
    with pytest.raises(ConfigError) as caught:
        checked(*overrides)
    return str(caught.value)


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


def test_what_can_be_heard_is_what_is_audio():
    assert audible("reward=acoustic") == "data=espeak or data=speech"
    assert [audible(part) for part in HEAR_PHONES] == ["data=speech", "data=speech"]
