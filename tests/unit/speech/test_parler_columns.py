"""Columns of a delayed stream: what is read, what may be said, and that sampling and scoring agree to the digit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from rlhf_lab.packs.speech.parler.columns import (
    Codebooks,
    CodecClip,
    ColumnSampler,
    choices,
    clip_logps,
    columns_of,
    decoder_inputs,
)

BOOKS = Codebooks(count=3, size=4, start=6, end=5)
VOCABULARY = 8


def logits_of(inputs_BKL: torch.Tensor, codebooks: Codebooks = BOOKS) -> torch.Tensor:
    """A causal model: the logits of column j follow from all that is read up to position j. (B, K, L, V), float64."""
    tables = torch.randn(codebooks.count, VOCABULARY, 5, generator=torch.Generator().manual_seed(1)).double()
    heads = torch.randn(codebooks.count, 5, VOCABULARY, generator=torch.Generator().manual_seed(2)).double()
    embedded_BLD = sum(tables[k][inputs_BKL[:, k]] for k in range(codebooks.count))
    decay_L = torch.arange(1, inputs_BKL.shape[2] + 1).double()
    states_BLD = torch.tanh((embedded_BLD * decay_L[:, None]).cumsum(1) / decay_L[:, None])
    return 0.5 * torch.einsum("bld,kdv->bklv", states_BLD, heads)


def sample(clips: int, *, max_frames: int, temperature: float = 1.0, codebooks: Codebooks = BOOKS, seed: int = 0):
    sampling = ColumnSampler(clips, codebooks, max_frames=max_frames, temperature=temperature, seed=seed)
    read = []
    while not sampling.is_complete:
        read.append(sampling.inputs())
        inputs_BKL = torch.stack(read, 2)
        sampling.draw(logits_of(inputs_BKL, codebooks)[:, :, -1])
    return sampling.clips(), torch.stack(read, 2)


def test_what_the_decoder_reads():
    clip = CodecClip(torch.tensor([[0, 1, 2], [3, 2, 1]]), is_finished=True)
    assert columns_of(clip, BOOKS) == 4
    assert decoder_inputs([clip], BOOKS)[0].tolist() == [[6, 0, 3, 5], [6, 6, 1, 2], [6, 6, 6, 2]]


def test_shorter_clips_are_filled_with_the_end():
    short, long = (
        CodecClip(torch.zeros(1, 3, dtype=torch.long), True),
        CodecClip(torch.ones(3, 3, dtype=torch.long), False),
    )
    inputs_BKL = decoder_inputs([short, long], BOOKS)
    assert inputs_BKL[0].tolist() == [[6, 0, 5, 5, 5], [6, 6, 0, 5, 5], [6, 6, 6, 0, 5]]
    assert inputs_BKL[1].tolist() == [[6, 1, 1, 1, 5], [6, 6, 1, 1, 1], [6, 6, 6, 1, 1]]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_sampling(count, temperature):
    codebooks = replace(BOOKS, count=count)
    selected, read_BKL = sample(32, max_frames=6, temperature=temperature, codebooks=codebooks)
    clips = [clip for clip, _ in selected]
    assert {clip.is_finished for clip in clips} == {True, False}
    assert len({len(clip.codes_TK) for clip in clips}) > 2
    inputs_BKL = decoder_inputs(clips, codebooks)
    options_BKLC = choices(logits_of(inputs_BKL, codebooks), codebooks, temperature=temperature)
    for row, (clip, recorded) in enumerate(selected):
        columns = columns_of(clip, codebooks)
        assert torch.equal(inputs_BKL[row, :, :columns], read_BKL[row, :, :columns])
        logps = clip_logps(options_BKLC[row], clip, codebooks)
        torch.testing.assert_close(logps.codes_TK, recorded.codes_TK, rtol=0, atol=1e-12)
        torch.testing.assert_close(logps.end, recorded.end, rtol=0, atol=1e-12)
        assert (logps.end != 0) == clip.is_finished


def test_the_probabilities_of_all_clips_sum_to_one():
    """Two codebooks of two codes, at most two frames: 4 clips of one frame that end, and 16 of two that are cut."""
    codebooks = Codebooks(count=2, size=2, start=3, end=2)
    total = 0.0
    for frames, is_finished in ((1, True), (2, False)):
        for codes in itertools.product(range(2), repeat=frames * 2):
            clip = CodecClip(torch.tensor(codes).view(frames, 2), is_finished)
            options_BKLC = choices(logits_of(decoder_inputs([clip], codebooks), codebooks), codebooks, temperature=1.0)
            logps = clip_logps(options_BKLC[0], clip, codebooks)
            total += float((logps.codes_TK.sum() + logps.end).exp())
    assert total == pytest.approx(1, abs=1e-12)


def test_log_probabilities_of_bfloat16_logits_have_all_digits():
    """Rounded to three digits, the probabilities of a choice summed to .994 … 1.006."""
    logits_BKLV = logits_of(torch.zeros(2, 3, 6, dtype=torch.long)).bfloat16()
    options = choices(logits_BKLV, BOOKS, temperature=0.7)
    assert torch.equal(options, choices(logits_BKLV.float(), BOOKS, temperature=0.7))


def test_only_the_first_codebook_ends_and_not_at_once():
    options = choices(torch.zeros(1, 3, 2, VOCABULARY), BOOKS, temperature=1.0)[0].exp()
    assert options[:, :, BOOKS.size].tolist() == [[0, pytest.approx(0.2)], [0, 0], [0, 0]]
    assert options[0, 0, 0] == pytest.approx(0.25) and options[0, 1, 0] == pytest.approx(0.2)


def test_the_seed_decides_the_draw():
    first, again, other = (sample(4, max_frames=5, seed=seed)[0] for seed in (3, 3, 4))
    for (clip, _), (same, _) in zip(first, again, strict=True):
        assert torch.equal(clip.codes_TK, same.codes_TK)
    assert any(not torch.equal(a[0].codes_TK, b[0].codes_TK) for a, b in zip(first, other, strict=True))


def test_logits_of_other_tokens_count_for_nothing():
    logits = torch.zeros(1, 3, 2, VOCABULARY)
    with_others = logits.clone()
    with_others[..., [4, 6, 7]] = 50.0  # neither a code (0 to 3) nor the end (5)
    assert torch.equal(choices(logits, BOOKS, temperature=1.0), choices(with_others, BOOKS, temperature=1.0))
