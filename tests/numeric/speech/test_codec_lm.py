"""Log-probabilities of a codec model: the delay pattern by hand, against the sampler's own, and against MusicGen's."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_lab.algorithms.preference.dpo import codebooks_separately, objective_of, preference_step
from rlhf_lab.algorithms.preference.settings import DPO
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.losses.preference import PREFERENCE_LOSSES, PairInputs, PairLogps, PairTokens
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.logprobs import exact_kl, token_logps
from rlhf_lab.models.pair_rows import pair_logps, response_logps
from rlhf_lab.models.settings import Scratch
from rlhf_lab.packs.speech.policy.codec_lm import FORBIDDEN, CodecLayout, DelayPattern, delay_pattern
from rlhf_lab.packs.speech.policy.decoder import CodecDecoder
from rlhf_lab.packs.speech.policy.start import code_tokenizer, codec_policy
from rlhf_lab.packs.speech.sound.codec import StreamRenderer
from rlhf_lab.packs.speech.sound.stream import read_stream, write_stream
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local

PROMPTS = ["low calm : ba du", "high glad : ki", "low glad : ba ba du ki"]


def tiny(sizes=(5, 4, 3), min_frames=0, seed=0):
    tokenizer = code_tokenizer(PROMPTS, sizes)
    settings = Scratch(family="codec", hidden=32, layers=2, heads=2, min_frames=min_frames)
    return codec_policy(settings, tokenizer, seed, sizes), Encoder(tokenizer)


def sample(model, encoder, group=16, max_new_tokens=60, **options):
    sampler = LocalSampler(Local(max_new_tokens=max_new_tokens, max_prompt_tokens=32), encoder.stop_ids)
    return sampler.sample(model, [encoder.prompt(prompt) for prompt in PROMPTS], group, seed=3, **options)


def rows_of(samples):
    return [
        (prompt, row.token_ids) for prompt, rows in zip(samples.prompts, samples.rows_BG, strict=True) for row in rows
    ]


@pytest.mark.parametrize("sizes", [(5,), (5, 4), (5, 4, 3), (3, 3, 3, 3)])
def test_every_sample_is_a_stream(sizes):
    model, encoder = tiny(sizes)
    finished = 0
    for _, tokens in rows_of(sample(model, encoder)):
        text = encoder.text(tokens)
        codes_TK = read_stream(text, len(sizes))
        assert (codes_TK < np.array(sizes)).all()
        if tokens[-1] == encoder.eos_id:
            finished += 1
            assert write_stream(codes_TK) == text
    assert finished > 10


def test_what_may_follow_in_each_kind_of_place():
    """Vocabulary: 0 the end of text, 1 pad, 2 a word, then a. a0 a1 | b. b0 as 3 4 5 | 6 7; K = 2."""
    pattern = DelayPattern((2, 1), first=3, eos=0, vocabulary=8)
    allowed = [row.nonzero().flatten().tolist() for row in pattern.allowed_SV == 0]
    assert allowed == [[0, 1, 2, 3, 4, 5, 6, 7], [4, 5], [7], [3, 4, 5], [3], [6], [0]]
    assert pattern.allowed_SV.min() == FORBIDDEN
    assert pattern.empty_V.nonzero().flatten().tolist() == [3, 6]


def test_kinds_of_places_along_a_stream():
    """Two frames in two codebooks: a0 b. | a1 b0 | a. b0 | end. Codebook 0 may end from column 1 on, then b goes on."""
    model, encoder = tiny((2, 1))
    response = encoder.response(write_stream(np.array([[0, 0], [1, 0]])))
    prompt = encoder.prompt(PROMPTS[0])
    states = CodecLayout(torch.tensor([[*prompt, *response]]), model.pattern).states()[0, len(prompt) - 1 : -1]
    code_a, code_b, code_or_end, empty_a, empty_b, end = 1, 2, 3, 4, 5, 6
    assert states.tolist() == [code_a, empty_b, code_or_end, code_b, code_or_end, code_b, end]
    assert empty_a not in states  # with two codebooks the clip is over where the first one would be empty again


def test_the_decoder_gives_the_logits_of_the_forward_pass_at_every_word():
    model, encoder = tiny()
    prompts = [encoder.prompt(prompt) for prompt in PROMPTS[:2]]
    response = encoder.response(write_stream(np.array([[1, 2, 0], [4, 3, 2], [0, 0, 1]])))
    decoder = CodecDecoder(model, torch.float32, 128)
    with torch.no_grad():
        logits, cache = decoder.start(prompts, 1, torch.device("cpu"))
        found = [logits]
        position = torch.tensor([len(prompt) for prompt in prompts])
        for token in response[:-1]:
            found.append(decoder.step(torch.tensor([token, token]), position, cache))
            position = position + 1
        for row, prompt in enumerate(prompts):
            full = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
            stepwise = torch.stack([logits_RV[row] for logits_RV in found])
            torch.testing.assert_close(stepwise, full, atol=1e-5, rtol=0)


def test_a_clip_does_not_end_before_its_least_frames():
    model, encoder = tiny(min_frames=7)
    lengths = [len(read_stream(encoder.text(tokens), 3)) for _, tokens in rows_of(sample(model, encoder))]
    assert min(lengths) == 7


def test_log_probabilities_equal_the_samplers():
    model, encoder = tiny()
    samples = sample(model, encoder)
    rows = rows_of(samples)
    logps = token_logps(model, TokenBatch.from_rows(rows))
    sampled = [logp for group in samples.rows_BG for row in group for logp in row.logps]
    np.testing.assert_allclose(logps.logps_N.detach().numpy(), sampled, atol=1e-5)


def test_places_that_the_pattern_knows_add_nothing():
    """With two frames and three codebooks twelve words and the end are sampled; seven of these 13 are choices.

    Columns (a b. c.) (a b c.) (a. b c) (a. b. c): of 12 words 6 are codes, and the first `a.` is the choice to end.
    """
    model, encoder = tiny()
    response = encoder.response(write_stream(np.array([[1, 2, 0], [4, 3, 2]])))
    row = (encoder.prompt(PROMPTS[0]), response)
    logps_N = token_logps(model, TokenBatch.from_rows([row])).logps_N.detach()
    is_choice = [True, False, False, True, True, False, True, True, True, False, False, True, False]
    assert (logps_N != 0).tolist() == is_choice


def test_the_sum_by_hand():
    """Logits of a column from a Llama forward over summed embeddings, softmax over the words that may follow."""
    model, encoder = tiny()
    model = model.double()
    codes_TK = np.array([[1, 2, 0], [4, 3, 2]])
    prompt = encoder.prompt(PROMPTS[0])
    response = encoder.response(write_stream(codes_TK))
    embed = model.model.embed_tokens.weight
    columns = [embed[torch.tensor(response[3 * c : 3 * c + 3])].sum(0) for c in range(3)]
    inputs = torch.stack([*embed[torch.tensor(prompt)], *columns])[None]
    logits = model.lm_head(model.model(inputs_embeds=inputs).last_hidden_state)[0, len(prompt) - 1 :]
    first = model.config.first_code  # the words are a. a0…a4 b. b0…b3 c. c0…c2
    a, b, c = first, first + 6, first + 11

    def logp(column, words, word):
        return torch.log_softmax(logits[column, words], 0)[words.index(word)]

    a_codes, b_codes, c_codes = [*range(a + 1, a + 6)], [*range(b + 1, b + 5)], [*range(c + 1, c + 4)]
    expected = (
        logp(0, a_codes, a + 1 + 1)  # a clip has a frame
        + logp(1, [a, *a_codes], a + 1 + 4) + logp(1, b_codes, b + 1 + 2)
        + logp(2, [a, *a_codes], a) + logp(2, b_codes, b + 1 + 3) + logp(2, c_codes, c + 1 + 0)
        + logp(3, c_codes, c + 1 + 2)
    )  # fmt: skip
    # token_logps is float32; the logits of the forward in float64 are exact
    batch = TokenBatch.from_rows([(prompt, response)])
    z_TV = model(batch.tokens_BT).logits[0].log_softmax(-1)
    exact = z_TV[:-1].gather(1, batch.tokens_BT[0, 1:, None])[len(prompt) - 1 :].sum()
    assert exact.item() == pytest.approx(expected.item(), abs=1e-9)
    assert token_logps(model, batch).sum_B().item() == pytest.approx(expected.item(), abs=1e-5)


def test_padding_and_neighbours_do_not_matter():
    model, encoder = tiny()
    rows = rows_of(sample(model, encoder))[::5]
    together = token_logps(model, TokenBatch.from_rows(rows)).sum_B()
    alone = torch.cat([token_logps(model, TokenBatch.from_rows([row])).sum_B() for row in rows])
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=0)


def test_the_sampler_does_not_depend_on_batches():
    model, encoder = tiny()
    full = sample(model, encoder)
    settings = Local(max_new_tokens=60, max_prompt_tokens=32, batch_rows=16)
    prompts = [encoder.prompt(prompt) for prompt in PROMPTS]
    parts = LocalSampler(settings, encoder.stop_ids).sample(model, prompts, 16, seed=3)
    assert rows_of(full) == rows_of(parts)


def test_exact_kl_of_two_models_is_finite_and_zero_of_one():
    model, encoder = tiny()
    other, _ = tiny(seed=1)
    batch = TokenBatch.from_rows(rows_of(sample(model, encoder)))
    assert exact_kl(model, model, batch).abs().max() == 0
    kl_B = exact_kl(model, other, batch)
    assert torch.isfinite(kl_B).all() and (kl_B > 0).all()


def test_a_saved_model_is_the_same(tmp_path):
    from rlhf_lab.models.build import load_encoder, load_policy, save_model

    model, encoder = tiny(min_frames=3)
    save_model(model, encoder, tmp_path)
    settings = Scratch(family="codec")
    loaded, loaded_encoder = load_policy(tmp_path, settings), load_encoder(tmp_path, settings)
    assert rows_of(sample(loaded, loaded_encoder)) == rows_of(sample(model, encoder))
    assert delay_pattern(loaded.config).min_frames == 3


def test_musicgen_has_the_same_pattern_and_the_same_log_probabilities():
    """A random model: its own delay mask lays frames out as the stream does, and its log-probabilities column by
    column are those of one pass over the full grid."""
    from transformers import MusicgenDecoderConfig, MusicgenForCausalLM

    K, size, T = 4, 6, 5
    torch.manual_seed(0)
    config = MusicgenDecoderConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16, num_codebooks=K,
        pad_token_id=size, bos_token_id=size, max_position_embeddings=64, audio_channels=1,
    )  # fmt: skip
    model = MusicgenForCausalLM(config).eval().double()
    codes_KT = torch.randint(0, size, (K, T))
    text = write_stream(codes_KT.T.numpy())
    grid_KC = [[size if word.endswith(".") else int(word[1:]) for word in text.split()[k::K]] for k in range(K)]
    # Hugging Face puts BOS first, and pads the columns before the start of a codebook
    ids = torch.tensor([[size, *row] for row in grid_KC])
    _, mask = model.build_delay_pattern_mask(ids[:, :1], pad_token_id=size, max_length=T + K)
    begun = mask[:, 1:] == -1
    assert begun.tolist() == [[0 <= c - k < T for c in range(T + K - 1)] for k in range(K)]

    def logits(columns):
        out = model(input_ids=ids[:, :columns]).logits
        return out.view(K, columns, size).log_softmax(-1)

    with torch.no_grad():
        full = logits(T + K - 1)
        for column in range(T + K - 1):
            step = logits(column + 1)[:, -1]
            for k in range(K):
                if begun[k, column]:
                    code = grid_KC[k][column]
                    assert step[k, code].item() == pytest.approx(full[k, column, code].item(), abs=1e-9)


def test_a_clip_shorter_than_the_model_allows_is_refused_and_not_scored():
    model, encoder = tiny(min_frames=3)
    row = (encoder.prompt(PROMPTS[0]), encoder.response(write_stream(np.array([[1, 2, 0], [4, 3, 2]]))))
    with pytest.raises(DataError, match="fewer than 3 frames"):
        token_logps(model, TokenBatch.from_rows([row]))


def test_what_would_need_a_cache_says_what_to_use():
    model, encoder = tiny()
    ids = torch.tensor([encoder.prompt(PROMPTS[0])])
    for attempt in (lambda: model(ids, use_cache=True), lambda: model.generate(ids, use_cache=True, max_new_tokens=3)):
        with pytest.raises(ConfigError, match="call it with use_cache=False"):
            attempt()


def test_a_policy_of_another_codec_is_refused():
    config = SimpleNamespace(codec="abc")
    same, other = (StreamRenderer(SimpleNamespace(fingerprint=name, sizes=())) for name in ("abc", "abd"))
    same.require_model(config)
    same.require_model(SimpleNamespace())
    with pytest.raises(ConfigError, match="uses a different codec than the data"):
        other.require_model(config)


SIZES = (5, 4, 3)
PROMPT = "low calm : ba"


@pytest.fixture
def policy():
    tokenizer = code_tokenizer([PROMPT], SIZES)
    settings = Scratch(family="codec", hidden=32, layers=1, heads=2)
    return codec_policy(settings, tokenizer, 0, SIZES), Encoder(tokenizer)


def row(encoder, frames, seed):
    rng = np.random.default_rng(seed)
    codes_TK = np.stack([rng.integers(0, size, frames) for size in SIZES], axis=1)
    return encoder.row(PROMPT, write_stream(codes_TK), 400)


def test_codebooks_add_up_to_the_reply(policy):
    model, encoder = policy
    batch = TokenBatch.from_rows([row(encoder, 3, 1), row(encoder, 7, 2)])
    apart_BK = response_logps(model, batch, 3)
    torch.testing.assert_close(apart_BK.sum(1), token_logps(model, batch).sum_B())
    # of the first row's codebook 0: positions 0, 3, 6, … of the stream
    logps = token_logps(model, batch)
    first = logps.logps_N[logps.row_N == 0]
    torch.testing.assert_close(apart_BK[0, 0], first[0::3].sum())


def test_the_loss_per_codebook_is_the_mean_of_the_codebooks_own_losses():
    """Gaps of log-ratios 2 and −1 with β ½: margins 1 and −½, loss (log(1+e⁻¹) + log(1+e^½))/2 = .6436."""
    policy = PairLogps(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    ref = PairLogps(torch.zeros(1, 2), torch.zeros(1, 2))
    tokens = PairTokens(torch.tensor([8.0]), torch.tensor([8.0]))
    loss = PREFERENCE_LOSSES["sigmoid"](PairInputs(policy, tokens, ref).of_codebooks(2), {"beta": 0.5})
    expected = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(0.5))) / 2
    assert loss.per_pair_B.mean().item() == pytest.approx(expected)
    assert loss.margin_B.tolist() == [1.0, -0.5]


def test_the_tokens_of_a_pair_are_divided_between_its_codebooks():
    """Responses of 8 and 4 tokens in two codebooks: 4 and 2 tokens of each, for losses that are means over them.

    SimPO with β = 1 and γ = 0. Codebook 0: −2/4 − (−3/2) = 1. Codebook 1: −6/4 − (−1/2) = −1. A second pair of 2 and 6
    tokens, 1 and 3 of each: −1/1 − (−3/3) = 0 and −2/1 − (−9/3) = 1.
    """
    chosen = torch.tensor([[-2.0, -6.0], [-1.0, -2.0]])
    rejected = torch.tensor([[-3.0, -1.0], [-3.0, -9.0]])
    tokens = PairTokens(torch.tensor([8.0, 2.0]), torch.tensor([4.0, 6.0]))
    separate = PairInputs(PairLogps(chosen, rejected), tokens).of_codebooks(2)
    assert separate.tokens.chosen.tolist() == [4.0, 4.0, 1.0, 1.0]
    assert separate.tokens.rejected.tolist() == [2.0, 2.0, 3.0, 3.0]
    loss = PREFERENCE_LOSSES["simpo"](separate, {"beta": 1.0, "gamma_beta_ratio": 0.0})
    assert loss.margin_B.tolist() == [1.0, -1.0, 0.0, 1.0]


@pytest.mark.parametrize("logps", ["sum", "mean", "per_codebook"])
def test_a_step_on_the_reference_itself_has_loss_log_2_and_a_gradient(policy, logps):
    model, encoder = policy
    settings = DPO(logps=logps, beta=0.5)
    pairs = [(row(encoder, 3, 1), row(encoder, 6, 2)), (row(encoder, 5, 3), row(encoder, 4, 4))]
    ref = pair_logps(model, pairs, "cpu", codebooks_separately(model, settings))
    out = preference_step(model, pairs, ref, settings, "cpu")
    assert out.loss_N.detach().tolist() == pytest.approx([math.log(2)] * 2, abs=1e-5)
    out.loss_N.mean().backward()
    assert model.lm_head.weight.grad.abs().sum() > 0


def test_mean_divides_each_reply_by_its_tokens(policy):
    """With one pair, loss = log(1 + exp(−β·(s_chosen/n_chosen − s_rejected/n_rejected))) against a reference of 0."""
    model, encoder = policy
    pair = (row(encoder, 3, 1), row(encoder, 6, 2))
    sums = token_logps(model, TokenBatch.from_rows(list(pair))).sum_B()
    lengths = [len(response) for _, response in pair]
    zero = PairLogps(torch.zeros(1), torch.zeros(1))
    out = preference_step(model, [pair], zero, DPO(logps="mean", beta=2.0), "cpu")
    margin = 2.0 * (sums[0] / lengths[0] - sums[1] / lengths[1]).item()
    assert out.loss_N.item() == pytest.approx(math.log(1 + math.exp(-margin)), abs=1e-5)


@pytest.mark.parametrize("logps", ["mean", "per_codebook"])
def test_only_whole_replies_have_the_optimum_of_dpo(logps):
    assert objective_of(DPO()).dpo_optimum
    assert not objective_of(DPO(logps=logps)).dpo_optimum


def test_a_model_of_text_has_no_codebooks():
    model = torch.nn.Linear(1, 1)
    model.config = SimpleNamespace()
    with pytest.raises(ConfigError, match="no codebooks"):
        codebooks_separately(model, DPO(logps="per_codebook"))


@pytest.mark.parametrize("loss", ["kto", "cpo"])
def test_losses_of_whole_replies_refuse_other_log_probabilities(loss):
    with pytest.raises(ValueError, match=f"logps=mean, loss={loss}"):
        DPO(logps="mean", loss=loss)
