"""The registry of metrics: declared once, found by name, the same wherever a metric is shown."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from rlhf_lab.core.metrics import Metric, catalogue, declared, metric, titled, undeclared
from rlhf_lab.results.wording import metric_note, metric_phrase, metric_title


def test_the_walk_finds_the_tables():
    assert len(declared()) > 200
    assert {"gold", "kl", "ece", "clip_fraction", "alarm_share/warning", "memory/peak"} <= catalogue().keys()


def test_a_name_has_one_title_one_unit_and_one_direction():
    for attribute in ("title", "unit", "better", "phrase", "column"):
        given = Counter(each.name for each in declared() if getattr(each, attribute))
        assert not [name for name, count in given.items() if count > 1], attribute


def test_what_a_reader_sees():
    kl = metric("kl")
    assert (kl.heading, kl.in_words, kl.unit, kl.better) == ("KL, nats", "KL", "nats", "")
    assert (metric("garble").better, metric("gold").better) == ("lower", "higher")
    assert metric_title("heldout_nll") == "held-out loss, nats"
    assert metric_phrase("tokens") == "length of a reply in tokens"
    assert metric_note("gold").startswith("true reward")


def test_a_name_that_nobody_declared_stands_for_itself():
    assert metric("my_plug_in").heading == "my plug in"
    assert metric("reward/brevity").meaning == metric("reward/<term>").meaning
    assert (metric("section/chat").better, metric("section/chat").title) == ("higher", "")
    assert "my_plug_in" not in titled()
    assert undeclared(["gold", "reward/brevity", "reward/brevity/words/more", "goldd"]) == [
        "goldd",
        "reward/brevity/words/more",
    ]


def test_a_placeholder_stands_for_one_part_of_a_name():
    known = Metric("lead/<rule>", "")
    assert known.matches("lead/length_z")
    assert not known.matches("lead/length/z")
    assert not known.matches("lead")


def test_the_registry_needs_no_torch():
    code = "import sys; from rlhf_lab.core.metrics import declared; declared(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
