"""Speech pack: codec language models, rewards on audio, and speech worlds with known naturalness (gold).

sound/ is the signal processing: audio files, features, codec, renderer, recogniser, and the text form of a clip. world/
has the speech worlds, policy/ the language model of codec tokens, rewards/ the terms that score clips, and
reward_models/ the stages that train them or rank clips by them. parler/ serves codec language models in a worker
process, Parler-TTS among them, and codec_dpo/ trains them. Start with sound/stream.py, then world/speech.py,
policy/codec_lm.py and rewards/acoustic.py. Imports no other pack.
"""

from rlhf_lab.core.packs import Pack

PACK = Pack(
    name="speech",
    package="rlhf_lab.packs.speech",
    commands={
        "parler": "rlhf_lab.packs.speech.commands:parler_command",
        "features": "rlhf_lab.packs.speech.commands:features_command",
    },
    answers={
        "recognised_phones": "rlhf_lab.packs.speech.report:recognised_phones",
        "preference_clips": "rlhf_lab.results.answer_corpora:synthetic_corpus",
    },
    run_sections=("rlhf_lab.packs.speech.report:acoustics after criteria",),
    families={"codec": "rlhf_lab.packs.speech.policy.family:CODEC"},
    criteria=("rlhf_lab.packs.speech.rewards.criteria:criteria_of",),
    preflight=("rlhf_lab.packs.speech.preflight:problems",),
    reward_files={"acoustic_reward.json": "rlhf_lab.packs.speech.rewards.acoustic_rm:from_folder"},
)
