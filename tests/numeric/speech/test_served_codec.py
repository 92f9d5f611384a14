"""The lab's codec model behind the protocol: its numbers are those of the lab's own log-probabilities and KL."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_lab.environments.splits import transcript
from rlhf_lab.models import lora
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.logprobs import exact_kl, token_logps
from rlhf_lab.models.settings import Scratch
from rlhf_lab.packs.speech.parler.codec_model import CodecModel
from rlhf_lab.packs.speech.parler.columns import CodecClip, clip_kl
from rlhf_lab.packs.speech.parler.served_model import OPTIMIZER
from rlhf_lab.packs.speech.policy.start import code_tokenizer, codec_policy
from rlhf_lab.packs.speech.sound.stream import write_stream

PROMPTS = [("ba du", "low calm"), ("ki", "high glad"), ("ki ba", "low glad")]
"""Texts and descriptions. The first and the last have equally many tokens."""
TRANSCRIPTS = [transcript(f"{description} : {text}") for text, description in PROMPTS]
MIN_FRAMES = 3


@pytest.fixture
def served() -> CodecModel:
    sizes = (5, 5, 5)
    tokenizer = code_tokenizer(TRANSCRIPTS, sizes)
    settings = Scratch(family="codec", hidden=32, layers=2, heads=2, min_frames=MIN_FRAMES)
    model = codec_policy(settings, tokenizer, 0, sizes)
    return CodecModel(model, Encoder(tokenizer), SimpleNamespace(rate=16000, fingerprint=""))


def sampled(served: CodecModel, prompts=PROMPTS, seeds=(1, 2, 3), temperature=1.0):
    return served.sample(prompts, clips=6, max_frames=12, temperature=temperature, seeds=seeds)


def rows_of(served: CodecModel, prompt: int, clips: list[CodecClip]) -> TokenBatch:
    """Finished clips as rows of the lab: the tokens of the prompt and of the stream."""
    encoder = served.encoder
    rows = [(encoder.prompt(TRANSCRIPTS[prompt]), encoder.response(write_stream(c.codes_TK.numpy()))) for c in clips]
    return TokenBatch.from_rows(rows, "cpu")


def finished_clips(served: CodecModel, prompt: int) -> list:
    own = sampled(served)[6 * prompt : 6 * prompt + 6]
    return [(clip, logps) for clip, logps in own if clip.is_finished]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_sampled_codes(served, temperature):
    clips = sampled(served, temperature=temperature)
    assert {clip.is_finished for clip, _ in clips} == {True, False}
    for prompt in range(len(PROMPTS)):
        own = clips[6 * prompt : 6 * prompt + 6]
        recomputed = served.logps(PROMPTS[prompt], [clip for clip, _ in own], temperature=temperature)
        for (_, at_sampling), later in zip(own, recomputed, strict=True):
            assert torch.allclose(at_sampling.codes_TK, later.codes_TK, atol=1e-5)
            assert torch.allclose(at_sampling.end, later.end, atol=1e-5)


def test_log_probabilities_are_those_of_the_lab(served):
    """The sum over the words of a stream, of which the determined ones have log-probability 0."""
    for prompt in range(len(PROMPTS)):
        own = finished_clips(served, prompt)
        assert own and all(len(clip.codes_TK) >= MIN_FRAMES for clip, _ in own)
        batch = rows_of(served, prompt, [clip for clip, _ in own])
        tokens = token_logps(served.model, batch)
        totals = torch.zeros(len(own)).index_add(0, tokens.row_N, tokens.logps_N)
        expected = torch.stack([logps.codes_TK.sum() + logps.end for _, logps in own])
        assert torch.allclose(totals, expected, atol=1e-4)


def test_a_batch_of_prompts_samples_what_each_prompt_samples_alone(served):
    assert served.batches(PROMPTS) == [[0, 2], [1]]
    together = sampled(served)
    for prompt, seed in enumerate((1, 2, 3)):
        alone = sampled(served, [PROMPTS[prompt]], [seed])
        for (clip, _), (other, _) in zip(alone, together[6 * prompt : 6 * prompt + 6], strict=True):
            assert torch.equal(clip.codes_TK, other.codes_TK) and clip.is_finished == other.is_finished


def test_the_kl_from_the_base_of_an_adapter_is_that_of_the_lab(served):
    own = [clip for clip, _ in finished_clips(served, 0)]
    served.add_adapter({"rank": 2}, seed=0)
    assert torch.stack(served.kl(PROMPTS[0], own, temperature=1.0)).abs().max() == 0  # B is zero at the start
    before = served.logps(PROMPTS[0], own, temperature=1.0)
    (-before[0].codes_TK.sum()).backward()
    norms = served.step(lr=0.05, weight_decay=0.0, max_grad_norm=1.0)
    assert norms["all"] > 0 and norms["lm_head"] == 0
    kl_N = torch.stack(served.kl(PROMPTS[0], own, temperature=1.0))
    batch = rows_of(served, 0, own)
    expected_N = exact_kl(served.model, lora.without_adapter(served.model), batch, temperature=1.0)
    assert kl_N.min() > 1e-4 and torch.allclose(kl_N, expected_N, rtol=1e-3)
    assert all(p.requires_grad == lora.is_of_adapter(name) for name, p in served.model.named_parameters())


def test_the_kl_of_a_clip_by_hand():
    """One codebook of two codes. One frame, then the end: KL of column 0 over two codes, and of column 1 over three."""
    half, quarter = np.log(0.5), np.log(0.25)
    policy = torch.tensor([[[half, half, -torch.inf], [half, quarter, quarter]]])
    reference = torch.tensor([[[quarter, np.log(0.75), -torch.inf], [quarter, half, quarter]]])
    code = 0.5 * (half - quarter) + 0.5 * (half - np.log(0.75))
    end = 0.5 * (half - quarter) + 0.25 * (quarter - half)
    frame = torch.zeros(1, 1, dtype=torch.long)
    assert clip_kl(policy, reference, CodecClip(frame, True)).item() == pytest.approx(code + end)
    assert clip_kl(policy, reference, CodecClip(frame, False)).item() == pytest.approx(code)


def test_an_adapter_is_read_as_it_was_written(served, tmp_path):
    clips = [clip for clip, _ in sampled(served)[:6]]
    with pytest.raises(RuntimeError, match="has no adapter"):
        served.kl(PROMPTS[0], clips, temperature=1.0)
    served.add_adapter({"rank": 2}, seed=0)
    (-served.logps(PROMPTS[0], clips, temperature=1.0)[0].codes_TK.sum()).backward()
    served.step(lr=0.05, weight_decay=0.0, max_grad_norm=1.0)
    served.save_adapter(tmp_path / "adapter")
    served.save_optimizer(tmp_path / "adapter")
    trained = served.logps(PROMPTS[0], clips, temperature=1.0)[0].codes_TK
    for parameter in served.trained():
        parameter.data.zero_()
    assert not torch.equal(served.logps(PROMPTS[0], clips, temperature=1.0)[0].codes_TK, trained)
    served.load_adapter(tmp_path / "adapter")
    served.load_optimizer(tmp_path / "adapter")
    assert torch.equal(served.logps(PROMPTS[0], clips, temperature=1.0)[0].codes_TK, trained)
    assert (tmp_path / "adapter" / OPTIMIZER).is_file()


def test_a_codec_of_other_data_is_refused():
    tokenizer = code_tokenizer(TRANSCRIPTS, (5, 5))
    settings = Scratch(family="codec", hidden=32, layers=1, heads=2)
    model = codec_policy(settings, tokenizer, 0, (5, 5), codec="abc")
    with pytest.raises(ValueError, match="trained for another codec"):
        CodecModel(model, Encoder(tokenizer), SimpleNamespace(rate=16000, fingerprint="def"))
    tokenizer = code_tokenizer(TRANSCRIPTS, (5, 4))
    with pytest.raises(ValueError, match=r"codebooks of sizes \[5, 4\]; the protocol needs codebooks of one size"):
        CodecModel(codec_policy(settings, tokenizer, 0, (5, 4)), Encoder(tokenizer), SimpleNamespace(rate=16000))
