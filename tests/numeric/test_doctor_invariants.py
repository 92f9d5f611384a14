"""The doctor's checks hold on sound models of several families, and say what they cannot ask."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from doctor_models import TEXTS, ask
from support import ONE_LAYER, SMALL_WORLD, bpe, planned, save_tiny

from rlhf_lab.doctor import examination, training
from rlhf_lab.doctor.examination import examine_model
from rlhf_lab.doctor.findings import CheckResult, DoctorCheck, examine
from rlhf_lab.doctor.subject import load_subject
from rlhf_lab.models.encoding import Encoder

TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}<assistant>"


def failing(findings: list[CheckResult]) -> list[str]:
    return [f"{f.name}: {f.measured} ({f.hint})" for f in findings if f.status == "fail"]


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "gemma2"])
def test_all_invariants_hold_on_a_checkpoint(family, make):
    findings = list(examine_model(make(family)))
    assert not failing(findings)
    assert [f.name for f in findings if f.status == "skip"] == ["bfloat16 gap", "processes"]
    by_name = {f.name: f for f in findings}
    known = "the model's own forward" if family == "gemma2" else "rlhf_lab's decoder"
    assert known in by_name["sampler ratio"].measured
    assert "more than a linear layer" not in by_name["output head"].measured


def test_all_invariants_hold_on_a_new_model_and_on_an_adapter(make, tmp_path):
    new = load_subject(planned("dpo", *SMALL_WORLD, *ONE_LAYER, f"outputs={tmp_path}"), tmp_path)
    assert new.what == "a new model, not trained"
    assert not failing(list(examine_model(new)))
    adapted = make("llama", "model.lora.rank=2")
    assert sum(p.requires_grad for p in adapted.model.parameters()) < sum(1 for _ in adapted.model.parameters())
    assert not failing(list(examine_model(adapted)))


def test_a_chat_template_and_half_precision_are_looked_at_when_they_are_configured(folders, make):
    subject = make("llama", "runtime.dtype=bfloat16")
    subject.encoder.tokenizer.chat_template = TEMPLATE
    assert "not used" in ask("chat template", subject).measured
    assert ask("bfloat16 gap", subject).status == "pass"
    templated = dataclasses.replace(subject.config.model, chat_template=True)
    subject.config = subject.config.replace(model=templated)
    assert ask("chat template", subject).status == "fail"  # asked for, and the encoder does without
    from rlhf_lab.data.transcript import to_conversation

    subject.encoder = Encoder(subject.encoder.tokenizer, to_conversation)
    assert ask("chat template", subject).status == "pass"
    assert ask("round trip", subject).status == "pass"


def test_generation_settings_of_the_checkpoint_do_not_disturb_the_comparison(make):
    subject = make("llama")
    subject.model.generation_config.repetition_penalty = 3.0
    assert ask("greedy = generate", subject).status == "pass"
    assert subject.model.generation_config.repetition_penalty == 3.0


def test_replies_that_are_cut_are_counted(make):
    subject = make("llama", "algorithm.max_length=16")
    conclusion = ask("truncation", subject)
    assert conclusion.status == "fail"
    cut = sum(response[-1] != subject.encoder.eos_id for _, response in subject.full_rows)
    assert f"{cut} responses without their end" in conclusion.measured
    assert "raise algorithm.max_length=16" in conclusion.hint


def test_processes_are_counted_before_they_are_started(make, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    two = ask("processes", make("llama", "sharding=ddp", "sharding.processes=2"))
    assert (two.status, two.measured) == ("pass", "sharding=ddp: 2 processes on this machine, 0 GPUs")
    for name, value in (("WORLD_SIZE", "4"), ("RANK", "0"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    other = ask("processes", make("llama", "sharding=ddp", "sharding.processes=2", "runtime.device=cpu"))
    assert other.status == "fail" and "the launcher started 4 processes" in other.hint
    assert ask("processes", make("llama", "runtime.device=cpu")).status == "fail"  # four with sharding=none
    monkeypatch.delenv("WORLD_SIZE")
    subject = make("llama", "sharding=fsdp_full", "sharding.processes=4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "sharding.processes=1" in ask("processes", subject).hint


def test_checks_that_do_not_fit_are_skipped_and_say_so(make):
    findings = list(examine("training", training.TRAINING, make("llama"), capacity=2.5))
    assert [f.status for f in findings] == ["skip", "pass", "skip", "skip"]
    assert "10 more copies of the model, 2.5 fit" in findings[2].measured


def test_a_check_that_breaks_is_a_failure_with_its_error():
    def broken(_: object) -> CheckResult:
        raise ValueError("no such thing")

    (conclusion,) = examine("test", [DoctorCheck("broken", broken)], None)
    assert (conclusion.status, conclusion.hint) == ("fail", "ValueError: no such thing")


def test_a_tokenizer_without_eos_is_a_finding(tmp_path, folders):
    tokenizer = bpe(TEXTS, 400, ["<x>"], bos_token="<x>")
    save_tiny("gpt2", tokenizer, tmp_path / "endless")
    data = ("data=pairs", f"data.path={folders['data']}", "data.test_fraction=0.2")
    stage = planned("sft", "model=hf", f"model.path={tmp_path / 'endless'}", *data)
    findings: list[CheckResult] = []
    examination._examine(stage, tmp_path, findings)
    assert [(f.name, f.status) for f in findings] == [("loads", "fail")]
    assert "no EOS token" in findings[0].hint
