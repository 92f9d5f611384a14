"""Each of the doctor's checks sees the fault it is there for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from doctor_models import ask
from rich.console import Console

from rlhf_lab.doctor import forward, training
from rlhf_lab.doctor.masks import picture
from rlhf_lab.doctor.subject import ExaminedModel
from rlhf_lab.models import shared_prompt
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.packing import PackedRows
from rlhf_lab.sampling.decoder import Decoder

# Each takes a sound subject and breaks one invariant.


def off_by_one(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    def targets(batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
        column_T = torch.arange(batch.tokens_BT.shape[1])
        inside = (column_T > batch.prompt_len_B[:, None]) & (column_T < batch.length_B[:, None])
        return inside.nonzero(as_tuple=True)

    patch.setattr(TokenBatch, "targets", targets)


def pad_id_mask(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    """The classic: everything that is not the pad token is trained, and pad is EOS."""
    eos = subject.encoder.eos_id

    def targets(batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
        column_T = torch.arange(batch.tokens_BT.shape[1])
        return ((column_T >= batch.prompt_len_B[:, None]) & (batch.tokens_BT != eos)).nonzero(as_tuple=True)

    patch.setattr(TokenBatch, "targets", targets)


def no_eos(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Encoder, "response", lambda self, text: self._ids(f" {text}"))


def unsplit(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Encoder, "_ids", lambda self, text, template=False: self.tokenizer(text)["input_ids"])


def lower_case(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    from tokenizers import normalizers

    subject.encoder.tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()


def more_tokens(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    subject.encoder.tokenizer.add_tokens([f"new{i}" for i in range(3)])


def neighbours(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    """Batch statistics: every token sees the mean of its column over the rows."""
    embed = subject.model.get_input_embeddings()
    embed.register_forward_hook(lambda module, inputs, out: out + out.mean(0, keepdim=True))


def future(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    """Every token sees the mean of its row, padding included."""
    embed = subject.model.get_input_embeddings()
    embed.register_forward_hook(lambda module, inputs, out: out + out.mean(1, keepdim=True))


def dropout_on(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    for module in subject.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1


def other_weights(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        subject.model.get_input_embeddings().weight.mul_(1.01)


def wrong_decoder(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    right = Decoder.of

    def of(*arguments: Any) -> Decoder:
        decoder = right(*arguments)
        assert decoder is not None
        decoder.embed_Vd = decoder.embed_Vd.roll(1, dims=0)
        return decoder

    patch.setattr(Decoder, "of", staticmethod(of))


def scaled_head(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    """A head that caps large logits only, so that a short check takes it for a linear one."""
    model: Any = subject.model
    assert forward.has_linear_head(model)
    simple = model.forward

    def capped(*arguments: Any, **options: Any) -> Any:
        out = simple(*arguments, **options)
        out.logits = 0.5 * torch.tanh(2 * out.logits)
        return out

    patch.setattr(model, "forward", capped)


def wrong_sharing(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    right = shared_prompt._prompts_then_responses
    assert shared_prompt.can_take_two_passes(subject.model.base_model)  # type: ignore[arg-type]
    patch.setattr(shared_prompt, "_prompts_then_responses", lambda *arguments: right(*arguments).roll(1, dims=0))


def wrong_packing(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    """Responses that see the other responses to their prompt."""
    assert shared_prompt.can_pack(subject.model.base_model)  # type: ignore[arg-type]
    right = PackedRows.of

    def of(batch: TokenBatch, packing: Any) -> PackedRows:
        packed = right(batch, packing)
        return dataclasses.replace(packed, start_RW=packed.prompt_start_RW)

    patch.setattr(PackedRows, "of", of)


def half_saved(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    """The files in the directory are not the model."""
    directory = subject.saved
    subject.model.get_output_embeddings().weight.data.mul_(1.5)
    assert directory.is_dir()


def forgetful(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    """A model whose scale depends on how often it was called, which no checkpoint knows."""
    make = subject.load_fresh_copy

    def fresh() -> Any:
        model, calls = make(), []

        def grow(module: Any, inputs: Any, out: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return out * (1 + len(calls))

        model.base_model.norm.register_forward_hook(grow)
        return model

    patch.setattr(subject, "load_fresh_copy", fresh)


def nothing_moves(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(training, "LR", 1e-30)


def large_gap(subject: ExaminedModel, patch: pytest.MonkeyPatch) -> None:
    runtime = dataclasses.replace(subject.config.runtime, dtype="bfloat16")
    subject.config = subject.config.replace(runtime=runtime)
    subject.model.get_output_embeddings().weight.data.mul_(300)


FAULTS = {
    "masks": (off_by_one, "4 response tokens left out"),
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
    "step-0 KL and ratio": (other_weights, "policy and reference differ"),
    "sampler ratio": (wrong_decoder, "ratios do not start at 1"),
    "greedy = generate": (wrong_decoder, "2 of 2 responses differ"),
    "output head": (scaled_head, "was linear"),
    "shared prompt": (wrong_sharing, "one row at a time"),
    "packed rows": (wrong_packing, "one row at a time"),
    "save and load": (half_saved, "log-probabilities differ by 0."),
    "resume": (forgetful, "another result"),
    "bfloat16 gap": (large_gap, "float32"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_found(name, make, monkeypatch):
    fault, words = FAULTS[name]
    subject = make("gpt2" if name == "dropout off" else "llama")
    assert ask(name, subject).status in ("pass", "skip")
    fresh = make("gpt2" if name == "dropout off" else "llama")
    fault(fresh, monkeypatch)
    conclusion = ask(name, fresh)
    text = f"{conclusion.measured} {conclusion.hint}"
    assert conclusion.status == "fail", text
    assert any(part in text for part in words.split("|")), text


def test_a_checkpoint_that_is_not_read_is_found(make, monkeypatch):
    monkeypatch.setattr(training.checkpoint, "load", lambda directory: (None, None))
    conclusion = ask("resume", make("llama"))
    assert (conclusion.status, conclusion.measured) == ("fail", "took steps [0], then [0, 1]")


def test_a_run_that_does_not_move_proves_nothing(make, monkeypatch):
    nothing_moves(make("llama"), monkeypatch)
    conclusion = ask("resume", make("llama"))
    assert conclusion.status == "fail"
    assert "change nothing" in conclusion.hint


def is_generated(subject: ExaminedModel) -> str:
    console = Console(width=1000, record=True, force_terminal=True, no_color=False, color_system="standard")
    with console.capture() as printed:
        console.print(picture(subject.encoder, subject.full_rows))
    return printed.get()


def test_masks_are_shown_in_colour(make, monkeypatch):
    subject = make("llama")
    lines = is_generated(subject).splitlines()
    assert len(lines) == 3
    (_, chosen), (_, rejected) = subject.full_rows[:2]
    for line, response in zip(lines[1:], (chosen, rejected), strict=True):
        assert line.count("[EOS]") == 1
        assert (
            line.count("\x1b[32m[") == min(len(response), 24 + 8) - 1
        )  # green: every displayed response token except EOS
    assert "·" in lines[2] and "·" not in lines[1]  # the rejected response is shorter and padded
    off_by_one(subject, monkeypatch)
    assert is_generated(subject).splitlines()[1].count("\x1b[1;31m!") == 1  # red: the first response token is left out
