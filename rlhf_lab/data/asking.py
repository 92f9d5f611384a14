"""Final form of the prompts of a source: a template around the question, and a system message.

Both become part of the prompt's text. They therefore change the fingerprint of the corpus, the prompt under which an
answer is looked up, and the input of the chat template. Answers, tests and other columns of a row are unchanged.
"""

from __future__ import annotations

from rlhf_lab.core.messages import Message
from rlhf_lab.data.file_settings import PROMPT, PromptFileSettings
from rlhf_lab.data.transcript import render_prompt, to_conversation


def as_requested(prompt: str, settings: PromptFileSettings) -> str:
    """Return a prompt with the source's template around its last user message, and with its system message.

    A row with its own system message keeps that one. A prompt without a user message has no question that the template
    could hold, so it gets no template.
    """
    if settings.prompt_template == PROMPT and not settings.system:
        return prompt
    messages, tools = to_conversation(prompt)
    requested: list[Message] = [message.copy() for message in messages]
    questions = [message for message in requested if message["role"] == "user"]
    if questions:
        question = questions[-1]
        # not str.format: a template may have other braces, such as those of \boxed{}
        question["content"] = settings.prompt_template.replace(PROMPT, question.get("content") or "")
    has_system = any(message["role"] == "system" for message in requested)
    if settings.system and not has_system:
        requested.insert(0, {"role": "system", "content": settings.system})
    return render_prompt(requested, tools)
