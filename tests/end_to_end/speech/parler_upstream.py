"""Parler-TTS by itself, in its own environment: greedy clips of its `generate` and our logits of the same columns.

    python tests/end_to_end/speech/parler_upstream.py MODEL FILE.json     with the environment on the path

Parler lets codebooks end when they like. Here none may end, so that both sides say the same columns.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from rlhf_lab.packs.speech.parler.columns import CodecClip, decoder_inputs
from rlhf_lab.packs.speech.parler.model import ParlerModel

FRAMES = 12
TEXT, DESCRIPTION = "Good morning to you.", "A calm voice."

parler = ParlerModel.load(sys.argv[1], dtype="float32", device="cpu", options={})
model, books = parler.model, parler.codebooks


class NeverEnds:
    """A logits processor instead of Parler's."""

    def __call__(self, input_ids, scores):
        is_no_code_V = torch.arange(scores.shape[1]) >= books.size
        return scores.masked_fill(is_no_code_V, -torch.inf)  # not in-place: these are the logits that are kept


decoded = []
decode = model.audio_encoder.decode


def remember(audio_codes, **settings):
    decoded.append(audio_codes)
    return decode(audio_codes=audio_codes, **settings)


model.audio_encoder.decode = remember
conditions = parler._conditions((TEXT, DESCRIPTION), 1)
made = model.generate(
    **conditions,
    do_sample=False,
    max_length=FRAMES + books.count,
    logits_processor=[NeverEnds()],
    output_logits=True,
    return_dict_in_generate=True,
)
codes_TK = decoded[0].reshape(books.count, -1).T
theirs_KLV = torch.stack(made.logits, 1)
inputs_RL = decoder_inputs([CodecClip(codes_TK, False)], books)[0]
with torch.no_grad():
    ours = model(decoder_input_ids=inputs_RL, use_cache=False, **conditions).logits[:, -inputs_RL.shape[1] :]
columns = min(ours.shape[1], theirs_KLV.shape[1])
# the captured codes are those of the audio
same_audio = torch.equal(parler.decode(codes_TK), made.sequences.flatten().float())
difference = float((ours[:, :columns] - theirs_KLV[:, :columns]).abs().max())
result = {"frames": len(codes_TK), "columns": columns, "difference": difference, "same_audio": same_audio}
Path(sys.argv[2]).write_text(json.dumps(result))
