"""Speech pack: codec language models, rewards on audio, and speech worlds with known naturalness (gold).

sound/ contains the signal processing: audio files, features, codec, renderer, and the text form of a clip. world/
contains the offline speech world and a second one that uses espeak-ng. policy/ is the language model of codec tokens.
rewards/ contains the reward terms that score clips, and reward_models/ the stages that train them.
preferences/ writes preference pairs of a policy's clips. parler/ serves codec
language models in a worker process, Parler-TTS among them, and codec_dpo/ trains them. answers.py, commands.py and
report.py contain what `PACK` adds to the console and to pages.

Start with sound/stream.py, then world/world.py, policy/codec_lm.py and rewards/acoustic.py. Imports no other pack.
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
        "recognised_phones": "rlhf_lab.packs.speech.answers:recognised_phones",
        "preference_clips": "rlhf_lab.results.answer_corpora:synthetic_corpus",
    },
    run_sections=("rlhf_lab.packs.speech.report:acoustics after criteria",),
    families={"codec": "rlhf_lab.packs.speech.policy.family:CODEC"},
    criteria=("rlhf_lab.packs.speech.rewards.criteria:criteria_of",),
    preflight=(
        "rlhf_lab.packs.speech.rewards.preflight:problems",
        "rlhf_lab.packs.speech.codec_dpo.preflight:problems",
    ),
    reward_files={"acoustic_reward.json": "rlhf_lab.packs.speech.rewards.acoustic_rm:from_folder"},
)
