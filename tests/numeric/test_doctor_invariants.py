"""The doctor's checks hold on sound models of several families, and each of them sees the fault it is there for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support import (
    ONE_LAYER,
    SMALL_WORLD,
    bpe,
    gpt2_tokenizer,
    llama_tokenizer,
    planned,
    save_tiny,
    toy_rows,
    write_pairs,
)

from rlhf_lab.doctor import examination, forward, training
from rlhf_lab.doctor.findings import Check, Finding, examine
from rlhf_lab.doctor.invariants import examine_model
from rlhf_lab.doctor.masks import picture
from rlhf_lab.doctor.subject import Subject, load_subject
from rlhf_lab.doctor.tokens import TOKENS
from rlhf_lab.models import shared_prompt
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.rollout.decoder import Decoder

TEXTS = [text for row in toy_rows(40) for text in row]
CHECKS = {check.name: check for check in (*TOKENS, *forward.FORWARD, *training.TRAINING)}
TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}<assistant>"


def save_relative(family: str, folder: Path) -> Path:
    """A tiny checkpoint of Qwen 2 (biases in attention), or of Gemma 2 (logits capped, sliding windows)."""
    from transformers import AutoModelForCausalLM, Gemma2Config, Qwen2Config

    tokenizer = gpt2_tokenizer(TEXTS)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": len(tokenizer), "num_key_value_heads": 2, "max_position_embeddings": 256}
    ids = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id, "pad_token_id": None}
    torch.manual_seed(0)
    made = (
        Qwen2Config(**sizes, **ids)
        if family == "qwen2"
        else Gemma2Config(**sizes, **ids, head_dim=8, final_logit_softcapping=0.1)
    )
    AutoModelForCausalLM.from_config(made).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "gpt2": save_tiny("gpt2", gpt2_tokenizer(TEXTS), root / "gpt2"),
        "llama": save_tiny("llama", llama_tokenizer(TEXTS), root / "llama"),
        "qwen2": save_relative("qwen2", root / "qwen2"),
        "gemma2": save_relative("gemma2", root / "gemma2"),
        "data": write_pairs(root / "pairs.jsonl", toy_rows(24)),
    }


@pytest.fixture
def make(folders, tmp_path_factory) -> Callable[..., Subject]:
    """A subject of a family, with overrides of the command."""

    def build(family: str, *overrides: str) -> Subject:
        data = ("data=pairs", f"data.path={folders['data']}", "data.test_fraction=0.2")
        model = ("model=hf", f"model.path={folders[family]}", "algorithm.max_length=96")
        overrides = (*overrides, *(["model.attention=eager"] if family == "gemma2" else []))
        return load_subject(
            planned("sft", *data, *model, "rollout.max_new_tokens=12", *overrides), tmp_path_factory.mktemp("work")
        )

    return build


def ask(name: str, subject: Subject) -> Finding:
    return next(examine("test", [CHECKS[name]], subject))


def failing(findings: list[Finding]) -> list[str]:
    return [f"{f.name}: {f.measured} ({f.advice})" for f in findings if f.status == "fail"]


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "gemma2"])
def test_all_invariants_hold_on_a_checkpoint(family, make):
    findings = list(examine_model(make(family)))
    assert not failing(findings)
    assert [f.name for f in findings if f.status == "skip"] == ["bfloat16 gap", "processes"]
    by_name = {f.name: f for f in findings}
    known = "the model's own forward" if family == "gemma2" else "the lab's decoder"
    assert known in by_name["sampler ratio"].measured
    assert ("more than a linear layer" in by_name["output head"].measured) == (family == "gemma2")


def test_all_invariants_hold_on_a_new_model_and_on_an_adapter(make, tmp_path):
    new = load_subject(planned("dpo", *SMALL_WORLD, *ONE_LAYER, f"outputs={tmp_path}"), tmp_path)
    assert new.what == "a new model, not trained"
    assert not failing(list(examine_model(new)))


def test_all_invariants_hold_on_an_adapter(make):
    adapted = make("llama", "model.lora.rank=2")
    assert sum(p.requires_grad for p in adapted.model.parameters()) < sum(1 for _ in adapted.model.parameters())
    assert not failing(list(examine_model(adapted)))


def test_a_chat_template_and_half_precision_are_looked_at_when_they_are_configured(folders, make):
    subject = make("llama", "runtime.dtype=bfloat16")
    subject.encoder.tokenizer.chat_template = TEMPLATE
    assert "not used" in ask("chat template", subject).measured
    assert ask("bfloat16 gap", subject).status == "pass"
    templated = dataclasses.replace(subject.config.model, chat_template=True)
    subject.config = dataclasses.replace(subject.config, model=templated)
    assert ask("chat template", subject).status == "fail"  # asked for, and the encoder does without
    from rlhf_lab.data.transcript import to_messages

    subject.encoder = Encoder(subject.encoder.tokenizer, to_messages)
    assert ask("chat template", subject).status == "pass"
    assert ask("round trip", subject).status == "pass"


def test_generation_settings_of_the_checkpoint_do_not_disturb_the_comparison(make):
    subject = make("llama")
    subject.model.generation_config.repetition_penalty = 3.0
    assert ask("greedy = generate", subject).status == "pass"
    assert subject.model.generation_config.repetition_penalty == 3.0


# Faults: each takes a sound subject and breaks one invariant.


def off_by_one(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    def targets(batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
        column_T = torch.arange(batch.tokens_BT.shape[1])
        inside = (column_T > batch.prompt_len_B[:, None]) & (column_T < batch.length_B[:, None])
        return inside.nonzero(as_tuple=True)

    patch.setattr(TokenBatch, "targets", targets)


def pad_id_mask(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    """The classic: everything that is not the pad token is trained, and pad is EOS."""
    eos = subject.encoder.eos_id

    def targets(batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
        column_T = torch.arange(batch.tokens_BT.shape[1])
        return ((column_T >= batch.prompt_len_B[:, None]) & (batch.tokens_BT != eos)).nonzero(as_tuple=True)

    patch.setattr(TokenBatch, "targets", targets)


def no_eos(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Encoder, "response", lambda self, text: self._ids(f" {text}"))


def unsplit(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Encoder, "_ids", lambda self, text, template=False: self.tokenizer(text)["input_ids"])


def lower_case(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    from tokenizers import normalizers

    subject.encoder.tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()


def more_tokens(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    subject.encoder.tokenizer.add_tokens([f"new{i}" for i in range(3)])


def neighbours(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    """Batch statistics: every token sees the mean of its column over the rows."""
    embed = subject.model.get_input_embeddings()
    embed.register_forward_hook(lambda module, inputs, out: out + out.mean(0, keepdim=True))


def future(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    """Every token sees the mean of its row, padding included."""
    embed = subject.model.get_input_embeddings()
    embed.register_forward_hook(lambda module, inputs, out: out + out.mean(1, keepdim=True))


def dropout_on(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    for module in subject.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1


def other_weights(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        subject.model.get_input_embeddings().weight.mul_(1.01)


def wrong_decoder(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    right = Decoder.of

    def of(*arguments: Any) -> Decoder:
        decoder = right(*arguments)
        assert decoder is not None
        decoder.embed_Vd = decoder.embed_Vd.roll(1, dims=0)
        return decoder

    patch.setattr(Decoder, "of", staticmethod(of))


def scaled_head(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    """A head that caps large logits only, so that a short look takes it for a linear one."""
    model: Any = subject.model
    assert forward.has_linear_head(model)
    plain = model.forward

    def capped(*arguments: Any, **options: Any) -> Any:
        out = plain(*arguments, **options)
        out.logits = 0.5 * torch.tanh(2 * out.logits)
        return out

    patch.setattr(model, "forward", capped)


def wrong_sharing(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    right = shared_prompt._shared
    assert shared_prompt.can_share(subject.model.base_model)  # type: ignore[arg-type]
    patch.setattr(shared_prompt, "_shared", lambda *arguments: right(*arguments).roll(1, dims=0))


def half_saved(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    """What lies in the folder is not the model."""
    folder = subject.saved
    subject.model.get_output_embeddings().weight.data.mul_(1.5)
    assert folder.is_dir()


def forgetful(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    """A model whose scale depends on how often it was called, which no checkpoint knows."""
    make = subject.fresh

    def fresh() -> Any:
        model, calls = make(), []

        def grow(module: Any, inputs: Any, out: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return out * (1 + len(calls))

        model.base_model.norm.register_forward_hook(grow)
        return model

    patch.setattr(subject, "fresh", fresh)


def nothing_moves(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(training, "LR", 1e-30)


def large_gap(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    runtime = dataclasses.replace(subject.config.runtime, dtype="bfloat16")
    subject.config = dataclasses.replace(subject.config, runtime=runtime)
    subject.model.get_output_embeddings().weight.data.mul_(300)


FAULTS = {
    "masks": (off_by_one, "4 reply tokens left out"),
    "log-probabilities": (off_by_one, "off by one|masks"),
    "padding token": (pad_id_mask, "changes the masks"),
    "EOS": (no_eos, "EOS 1 ends 0 of"),
    "special tokens": (unsplit, "gives 1 end tokens"),
    "round trip": (lower_case, "0 of|characters"),
    "vocabulary": (more_tokens, "embeddings"),
    "batch invariance": (neighbours, "batch statistics"),
    "accumulation": (neighbours, "influence each other"),
    "padding invariance": (future, "not causal"),
    "dropout off": (dropout_on, "attn_dropout|drop"),
    "step-0 KL and ratio": (other_weights, "not one model"),
    "sampler ratio": (wrong_decoder, "ratios do not start at 1"),
    "greedy = generate": (wrong_decoder, "2 of 2 replies differ"),
    "output head": (scaled_head, "looked linear"),
    "shared prompt": (wrong_sharing, "one row at a time"),
    "save and load": (half_saved, "log-probabilities differ by 0."),
    "resume": (forgetful, "end elsewhere"),
    "bfloat16 gap": (large_gap, "float32"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_found(name, make, monkeypatch):
    fault, words = FAULTS[name]
    subject = make("gpt2" if name == "dropout off" else "llama")
    assert ask(name, subject).status in ("pass", "skip")
    fresh = make("gpt2" if name == "dropout off" else "llama")
    fault(fresh, monkeypatch)
    finding = ask(name, fresh)
    said = f"{finding.measured} {finding.advice}"
    assert finding.status == "fail", said
    assert any(part in said for part in words.split("|")), said


def test_a_checkpoint_that_is_not_read_is_found(make, monkeypatch):
    monkeypatch.setattr(training.checkpoint, "load", lambda folder: (None, None))
    finding = ask("resume", make("llama"))
    assert (finding.status, finding.measured) == ("fail", "took steps [0], then [0, 1]")


def test_a_run_that_does_not_move_proves_nothing(make, monkeypatch):
    nothing_moves(make("llama"), monkeypatch)
    finding = ask("resume", make("llama"))
    assert finding.status == "fail"
    assert "change nothing" in finding.advice


def test_replies_that_are_cut_are_counted(make):
    subject = make("llama", "algorithm.max_length=16")
    finding = ask("truncation", subject)
    assert finding.status == "fail"
    cut = sum(reply[-1] != subject.encoder.eos_id for _, reply in subject.full_rows)
    assert f"{cut} replies without their end" in finding.measured
    assert "raise algorithm.max_length=16" in finding.advice


def test_processes_are_counted_before_they_are_started(make, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    two = ask("processes", make("llama", "sharding=ddp", "sharding.processes=2"))
    assert (two.status, two.measured) == ("pass", "sharding=ddp: 2 processes on this machine, 0 GPUs")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    other = ask("processes", make("llama", "sharding=ddp", "sharding.processes=2", "runtime.device=cpu"))
    assert other.status == "fail" and "the launcher started 4 processes" in other.advice
    assert ask("processes", make("llama", "runtime.device=cpu")).status == "fail"  # four with sharding=none
    monkeypatch.delenv("WORLD_SIZE")
    subject = make("llama", "sharding=fsdp_full", "sharding.processes=4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "sharding.processes=1" in ask("processes", subject).advice


def test_checks_that_do_not_fit_are_skipped_and_say_so(make):
    findings = list(examine("training", training.TRAINING, make("llama"), room=2.5))
    assert [f.status for f in findings] == ["skip", "pass", "skip", "skip"]
    assert "10 more copies of the model, 2.5 fit" in findings[2].measured


def test_a_check_that_breaks_is_a_failure_with_its_error():
    def broken(_: object) -> Finding:
        raise ValueError("no such thing")

    (finding,) = examine("test", [Check("broken", broken)], None)
    assert (finding.status, finding.advice) == ("fail", "ValueError: no such thing")


def test_a_tokenizer_without_eos_is_a_finding(tmp_path, folders):
    tokenizer = bpe(TEXTS, 400, ["<x>"], bos_token="<x>")
    save_tiny("gpt2", tokenizer, tmp_path / "endless")
    overrides = (
        f"model.path={tmp_path / 'endless'}",
        "data=pairs",
        f"data.path={folders['data']}",
        "data.test_fraction=0.2",
    )
    stage = planned("sft", "model=hf", *overrides)
    findings: list[Finding] = []
    examination._examine(stage, tmp_path, findings)
    assert [(f.name, f.status) for f in findings] == [("loads", "fail")]
    assert "no EOS token" in findings[0].advice


def drawn(subject: Subject) -> str:
    console = Console(width=1000, record=True, force_terminal=True, no_color=False, color_system="standard")
    with console.capture() as printed:
        console.print(picture(subject.encoder, subject.full_rows))
    return printed.get()


def test_masks_are_shown_in_colour(make, monkeypatch):
    subject = make("llama")
    lines = drawn(subject).splitlines()
    assert len(lines) == 3
    (_, chosen), (_, rejected) = subject.full_rows[:2]
    for line, reply in zip(lines[1:], (chosen, rejected), strict=True):
        assert line.count("[EOS]") == 1
        assert line.count("\x1b[32m[") == min(len(reply), 24 + 8) - 1  # green: every reply token that is shown, but EOS
    assert "·" in lines[2] and "·" not in lines[1]  # the rejected reply is shorter and padded
    off_by_one(subject, monkeypatch)
    assert drawn(subject).splitlines()[1].count("\x1b[1;31m!") == 1  # red: the first reply token is left out
