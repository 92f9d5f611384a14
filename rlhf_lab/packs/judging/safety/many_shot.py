"""Many-shot prompts (Anil et al. 2024): demonstrations of an assistant who gives harm, in front of an unsafe prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import SafetyPrompt
from rlhf_lab.data.transcript import render_prompt, to_conversation


def with_shots(prompt: SafetyPrompt, demonstrations: Sequence[tuple[str, str]], shots: int) -> SafetyPrompt:
    """The prompt behind so many demonstrations, none of which asks its own question; taken in turn where few."""
    messages, tools = to_conversation(prompt.prompt)
    asked = messages[-1]["content"]
    others = [pair for pair in demonstrations if pair[0] not in asked]
    shown: list[Message] = []
    for number in range(shots if others else 0):
        question, reply = others[number % len(others)]
        shown += [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    return replace(prompt, prompt=render_prompt([*shown, *messages], tools))
