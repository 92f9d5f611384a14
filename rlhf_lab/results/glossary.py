"""Words that head tables and name signs, each explained in a sentence: shown on hover, on focus and on touch."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

GLOSSARY = {
    "gold": "what replies are worth, unseen by training: the world's true reward, or what another model or judge says",
    "proxy": "the learned or written reward that training maximises",
    "kl": "Kullback-Leibler divergence: how far the policy is from its reference, in nats per reply",
    "nat": "unit of KL: 1 nat is 1.44 bits",
    "garble": "share of replies that are not language",
    "garbling": "replies that are not language become more frequent",
    "padding": "replies padded with filler become more frequent",
    "verbose": "share of replies padded with filler",
    "ended": "share of replies that end by themselves within the token limit",
    "lead": "iterations from the first alarm to the fall of gold; below 0 is too late",
    "first alarm": "iteration, counted from 1, at which the rule was first in alarm",
    "share of checkpoints": "of those after the warm-up, how many were in alarm",
    "last value": "the rule's statistic at the last checkpoint",
    "over-optimisation": "the proxy rises while gold falls",
    "monitor, during training": "rules that watch the replies which the policy is trained on",
    "p": "probability of a difference at least this large if there were none",
    "p (holm)": "probability of a difference at least this large if there were none, adjusted for the number of tests",
    "detectable": "the true difference that would have been found with 80 % power",
    "n / prompts": "scored samples / prompts that they answer",
    "prompts": "prompts that both policies answered: the pairs",
    "win rate": "share of replies preferred over those of the starting policy",
    "seeds": "independent training runs that differ in chance alone",
}
# Other ways in which the same words head a table.
FORMS = {"nats": "nat", "garbled": "garble", "gold reward": "gold", "proxy reward": "proxy", "kl, nats": "kl"}
FORMS |= {"p holm": "p (holm)", "minimum detectable effect": "detectable", "p (holm over metrics)": "p (holm)"}


def meaning(text: str) -> str:
    """What a word means; empty for one that is not in the glossary."""
    word = re.sub(r"\s+", " ", text.replace("\u00a0", " ")).strip().lower()
    return GLOSSARY.get(FORMS.get(word, word), "")


def term(text: str, note: str = "") -> Markup:
    """Escaped text, with its meaning (`note`, or else that of the glossary) where it has one."""
    explanation = note or meaning(text)
    if not explanation:
        return escape(text)
    # tabindex makes the title reachable by keyboard and touch; Markup.format escapes what it inserts
    return Markup('<abbr tabindex="0" title="{}">{}</abbr>').format(explanation, text)
