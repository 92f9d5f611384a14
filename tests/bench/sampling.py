"""The sampler against Hugging Face `generate`: same model, prompts, batch and number of new tokens.

And against itself: responses of very different lengths, a quarter of them at a time, refilled or batch by batch.
"""

from __future__ import annotations

import torch
from shapes import build_model, scale
from timing import Row, compare, race

from rlhf_lab.sampling.decoder import Decoder
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local

PROMPT_TOKENS, NEW_TOKENS, VOCABULARY = 32, 48, 1000
BAR = 3.0
MEAN_TOKENS = 48  # of a response that may end, see `_refilled`
NO_EOS = -1  # no row ends early: the worst case for a sampler that drops finished rows


def rows(rounds: int) -> list[Row]:
    found = []
    for family in ("llama", "gpt2"):
        for size in scale.sizes:
            model = build_model(family, size, VOCABULARY)
            prompts = torch.randint(5, 900, (scale.prompts, PROMPT_TOKENS)).tolist()
            ids = torch.tensor([p for p in prompts for _ in range(scale.group)], device=scale.device)

            def generate(model=model, ids=ids) -> None:
                torch.manual_seed(1)
                with scale.autocast():
                    model.generate(
                        ids,
                        attention_mask=torch.ones_like(ids),
                        max_new_tokens=NEW_TOKENS,
                        min_new_tokens=NEW_TOKENS,
                        do_sample=True,
                        top_k=0,
                        pad_token_id=0,
                    )

            def ours(dtype, model=model, prompts=prompts):
                settings = Local(max_new_tokens=NEW_TOKENS, max_prompt_tokens=PROMPT_TOKENS, dtype=dtype)
                return lambda: LocalSampler(settings, [NO_EOS]).sample(model, prompts, scale.group, 1)

            contestants = {"theirs": generate, "float32": ours("float32"), "bfloat16": ours("bfloat16")}
            with torch.no_grad():
                seconds = race(contestants, rounds)
            for dtype in ("float32", "bfloat16"):
                work = f"sample {scale.prompts}×{scale.group}, {PROMPT_TOKENS}+{NEW_TOKENS} tokens, {family} {size}"
                against = "HF generate, bfloat16 autocast" if scale.bfloat16 else "HF generate float32"
                found.append(compare(f"{work}, {dtype}", against, seconds[dtype], seconds["theirs"], BAR))
    return [*found, _refilled(rounds)]


def _refilled(rounds: int) -> Row:
    """Four batches of responses that end with one token in `MEAN_TOKENS`, limited to 4 times that length."""
    model = build_model("llama", scale.sizes[0], VOCABULARY)
    prompts = torch.randint(5, 900, (4 * scale.prompts, PROMPT_TOKENS)).tolist()
    stop_ids = range(VOCABULARY - VOCABULARY // MEAN_TOKENS, VOCABULARY)  # weights are random: all are about as likely
    settings = Local(
        max_new_tokens=4 * MEAN_TOKENS, max_prompt_tokens=PROMPT_TOKENS, batch_rows=scale.prompts * scale.group
    )

    def sample(refills: bool) -> None:
        own = Decoder.refills
        Decoder.refills = refills
        try:
            LocalSampler(settings, stop_ids).sample(model, prompts, scale.group, 1)
        finally:
            Decoder.refills = own

    contestants = {"refilled": lambda: sample(True), "batch by batch": lambda: sample(False)}
    with torch.no_grad():
        seconds = race(contestants, rounds)
    work = f"sample {4 * scale.prompts}×{scale.group}, {scale.prompts * scale.group} rows at a time, refilled"
    return compare(work, "batch by batch", seconds["refilled"], seconds["batch by batch"], None)
