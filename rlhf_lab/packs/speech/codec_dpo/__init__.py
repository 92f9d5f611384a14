"""DPO on a codec language model in a worker process: rlhf_lab's own (`model=codec`) or Parler-TTS (`model=parler`).

Read settings.py, then codec_dpo.py. The rounds, the protocol and the workers are in packs/speech/parler/.
"""
