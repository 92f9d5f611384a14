"""How the prompts of a source are put to a policy: a template around the question, and a system message.

Both become part of the prompt's text, and so of the corpus' fingerprint, of the key of an answer, and of what a chat
template renders. The answer key, the tests and the other columns of a row stay as they are.
"""

from __future__ import annotations

from rlhf_lab.core.messages import Message
from rlhf_lab.data.file_settings import PROMPT, AskedSettings
from rlhf_lab.data.transcript import render_prompt, to_conversation


def as_asked(prompt: str, settings: AskedSettings) -> str:
    """A prompt with the source's template around its last user message, and with its system message.

    A row that has a system message of its own keeps that one. A prompt without a user message has no question that the
    template could hold.
    """
    if settings.prompt_template == PROMPT and not settings.system:
        return prompt
    messages, tools = to_conversation(prompt)
    asked: list[Message] = [message.copy() for message in messages]
    questions = [message for message in asked if message["role"] == "user"]
    if questions:
        question = questions[-1]
        # not str.format: a template may have other braces, such as those of \boxed{}
        question["content"] = settings.prompt_template.replace(PROMPT, question.get("content") or "")
    has_system = any(message["role"] == "system" for message in asked)
    if settings.system and not has_system:
        asked.insert(0, {"role": "system", "content": settings.system})
    return render_prompt(asked, tools)
