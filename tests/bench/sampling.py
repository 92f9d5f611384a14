"""The sampler against Hugging Face `generate`: same model, prompts, batch and number of new tokens."""

from __future__ import annotations

import torch
from shapes import build_model
from timing import Row, compare, race

from rlhf_lab.rollout.local import LocalSampler
from rlhf_lab.rollout.settings import Local

PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS, VOCABULARY = 8, 8, 32, 48, 1000
BAR = 3.0
NO_EOS = -1  # no row ends early: the worst case for a sampler that drops finished rows


def rows(rounds: int) -> list[Row]:
    found = []
    for family in ("llama", "gpt2"):
        for size in ("1M", "10M"):
            model = build_model(family, size, VOCABULARY)
            prompts = torch.randint(5, 900, (PROMPTS, PROMPT_TOKENS)).tolist()
            ids = torch.tensor([p for p in prompts for _ in range(GROUP)])

            def generate(model=model, ids=ids) -> None:
                torch.manual_seed(1)
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
                return lambda: LocalSampler(settings, NO_EOS).sample(model, prompts, GROUP, 1)

            contestants = {"theirs": generate, "float32": ours("float32"), "bfloat16": ours("bfloat16")}
            with torch.no_grad():
                seconds = race(contestants, rounds)
            for dtype in ("float32", "bfloat16"):
                work = f"sample {PROMPTS}×{GROUP}, {PROMPT_TOKENS}+{NEW_TOKENS} tokens, {family} {size}, {dtype}"
                found.append(compare(work, "HF generate float32", seconds[dtype], seconds["theirs"], BAR))
    return found
