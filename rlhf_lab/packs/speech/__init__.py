"""Speech: a renderer, a codec and its policies, acoustic rewards, Parler-TTS.

Begin with world/speech.py; then policy/codec_lm.py, rewards/acoustic.py.
"""

from rlhf_lab.core.packs import Pack

PACK = Pack(
    name="speech",
    package="rlhf_lab.packs.speech",
    commands={
        "parler": "rlhf_lab.packs.speech.commands:parler_command",
        "features": "rlhf_lab.packs.speech.commands:features_command",
    },
    answers={"phones_heard": "rlhf_lab.packs.speech.answers:phones_heard"},
    run_sections=("rlhf_lab.packs.speech.report:acoustics after criteria",),
    families={"codec": "rlhf_lab.packs.speech.policy.family:CODEC"},
    criteria=("rlhf_lab.packs.speech.rewards.criteria:criteria_of",),
    reward_files={"acoustic_reward.json": "rlhf_lab.packs.speech.rewards.acoustic_rm:from_folder"},
)
