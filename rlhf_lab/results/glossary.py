"""Glossary of table headings and warning signs: each term is explained in a sentence on hover, focus and touch."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

GLOSSARY = {
    "gold": "value of responses, unseen by training: the world's true reward, or the score of another model or judge",
    "proxy": "the learned or hand-written reward that training maximises",
    "kl": "Kullback-Leibler divergence: how far the policy is from its reference, in nats per response",
    "nat": "unit of KL: 1 nat is 1.44 bits",
    "garble": "fraction of responses that are degenerate text, not language",
    "garbling": "degenerate responses become more frequent",
    "padding": "responses padded with filler become more frequent",
    "verbose": "fraction of responses padded with filler",
    "ended": "fraction of responses that end by themselves within the token limit",
    "lead": "iterations from the first alarm to the fall of gold; below 0 is too late",
    "first alarm": "iteration, counted from 1, at which the rule first raised an alarm",
    "fraction of checkpoints": "fraction of the checkpoints after the warm-up at which the rule raised an alarm",
    "last value": "the rule's statistic at the last checkpoint",
    "over-optimisation": "the proxy rises while gold falls",
    "monitor, during training": "rules that watch the responses on which the policy is trained",
    "p": "probability of a difference at least this large if there were none",
    "p (holm)": "probability of a difference at least this large if there were none, adjusted for the number of tests",
    "detectable": "the true difference that would have been found with 80 % power",
    "n / prompts": "number of scored samples / number of their prompts",
    "n / templates": "number of scored attempts / number of task templates",
    "prompts": "prompts that both policies answered: the pairs",
    "win rate": "fraction of responses preferred over those of the starting policy",
    "seeds": "independent training runs that differ only by chance",
}
"""Term in lower case → its meaning."""
# Other spellings of the same terms in table headings.
FORMS = {
    "nats": "nat",
    "garbled": "garble",
    "gold reward": "gold",
    "proxy reward": "proxy",
    "kl, nats": "kl",
    "p holm": "p (holm)",
    "minimum detectable effect": "detectable",
    "p (holm over metrics)": "p (holm)",
}


def meaning(text: str) -> str:
    """Return the meaning of a term; empty if it is not in the glossary."""
    word = re.sub(r"\s+", " ", text.replace("\u00a0", " ")).strip().lower()
    return GLOSSARY.get(FORMS.get(word, word), "")


def term(text: str, note: str = "") -> Markup:
    """Return escaped text, with its explanation (`note`, or the glossary entry) as a title if there is one."""
    explanation = note or meaning(text)
    if not explanation:
        return escape(text)
    # tabindex makes the title reachable by keyboard and touch; Markup.format escapes the inserted text.
    return Markup('<abbr tabindex="0" title="{}">{}</abbr>').format(explanation, text)
