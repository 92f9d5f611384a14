"""DPO on a codec language model in a worker process: rlhf_lab's own (`model=codec`) or Parler-TTS (`model=parler`).

settings.py has the settings of `algorithm=codec_dpo`, and codec_dpo.py the stage. backends.py opens the worker of a run
and reads its prompts. served_audio.py passes the decoded clips to the reward graph. The rounds, the protocol and the
workers are in packs/speech/parler/. preflight.py checks the environment of Parler-TTS.
"""
