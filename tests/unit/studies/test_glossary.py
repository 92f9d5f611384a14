"""Words of the field are explained where they stand: on hover, by keyboard, and escaped."""

from __future__ import annotations

from rlhf_lab.results.glossary import FORMS, GLOSSARY, meaning, term


def test_forms_lead_to_words_that_are_there():
    assert set(FORMS.values()) <= set(GLOSSARY)
    assert meaning("Gold reward") == GLOSSARY["gold"] and meaning("KL,\u00a0nats") == GLOSSARY["kl"]
    assert meaning("policy") == ""


def test_a_term_is_escaped_and_can_have_the_focus():
    assert term("lead") == f'<abbr tabindex="0" title="{GLOSSARY["lead"]}">lead</abbr>'
    assert term("<b>") == "&lt;b&gt;" and term("x", '"><i>') == '<abbr tabindex="0" title="&#34;&gt;&lt;i&gt;">x</abbr>'
