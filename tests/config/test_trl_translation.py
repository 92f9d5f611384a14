"""The vocabulary of TRL's tables: how one setting becomes arguments, and which trainer reads which section."""

from __future__ import annotations

from types import SimpleNamespace

from rlhf_lab.algorithms.trl.tables import Trainer, fixed_to, renamed_to

ROOT = SimpleNamespace(algorithm="settings", rollout="sampling")


def test_a_setting_of_which_some_values_cannot_be_honoured():
    option = fixed_to(0, "TRL has no warm-up of a critic", 1)
    assert [option.allowed(value, ROOT) for value in (0, 1, 2)] == [True, True, False]
    assert "no warm-up" in option.refusal


def test_a_trainer_that_samples_answers_for_the_rollout():
    table = {"beta": renamed_to("beta")}
    trainer = Trainer("GRPOTrainer", table, rollout={"temperature": renamed_to("temperature")})
    assert trainer.config == "GRPOConfig" and trainer.samples
    assert [(name, settings) for name, settings, _ in trainer.sections(ROOT)] == [
        ("algorithm", "settings"),
        ("rollout", "sampling"),
    ]
    assert [name for name, _, _ in Trainer("DPOTrainer", table).sections(ROOT)] == ["algorithm"]
