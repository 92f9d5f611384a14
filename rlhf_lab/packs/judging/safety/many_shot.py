"""Many-shot prompts (Anil et al. 2024): demonstrations of a harmful assistant that precede an unsafe prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import SafetyPrompt
from rlhf_lab.data.transcript import render_prompt, to_conversation


def with_shots(prompt: SafetyPrompt, demonstrations: Sequence[tuple[str, str]], shots: int) -> SafetyPrompt:
    """Return the prompt preceded by `shots` demonstrations, which are repeated if there are fewer. Demonstrations of
    the prompt's own question are left out. Instructions of the system stay at the beginning.
    """
    messages, tools = to_conversation(prompt.prompt)
    requested = messages[-1]["content"]
    # a demonstration of the same question would contain the answer
    others = [pair for pair in demonstrations if pair[0] not in requested]
    shown: list[Message] = []
    for number in range(shots if others else 0):
        question, response = others[number % len(others)]
        shown += [{"role": "user", "content": question}, {"role": "assistant", "content": response}]
    instructions = list(takewhile(lambda message: message["role"] == "system", messages))
    turns = [*instructions, *shown, *messages[len(instructions) :]]
    return replace(prompt, prompt=render_prompt(turns, tools))
