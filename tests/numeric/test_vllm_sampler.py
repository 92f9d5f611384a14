"""rollout=vllm against a server that answers as vLLM does (tests/fake_vllm.py): rows, seeds, weights, failures.

tests/end_to_end/test_vllm.py asks vLLM itself.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_vllm import FakeVllm
from processes import together
from test_sampler import CONFIGS, EOS, LLAMA, prompts, random_model
from torch import nn
from transformers import Qwen2Config

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError, NumericError
from rlhf_lab.models import lora
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.settings import LoRA
from rlhf_lab.models.weights import add_product, store
from rlhf_lab.sampling.local import LocalSampler, Samples
from rlhf_lab.sampling.settings import Local, Vllm
from rlhf_lab.sampling.vllm.client import ServerFailed, VllmClient
from rlhf_lab.sampling.vllm.sampler import VllmSampler
from rlhf_lab.sampling.vllm.server import PLUGIN, Server, Serving, server_rank
from rlhf_lab.sampling.vllm.weights import Servers, fingerprint_of, servers_of

STOPS = (EOS, *range(10, 60))
"""Many tokens that end a response, so that rows end at different steps."""
SYNC = [
    *("lab_describe", "/pause?mode=abort", "/update_weight_version", "lab_load", "/reset_prefix_cache"),
    *("/update_weight_version", "/resume"),
]
FAKE = [sys.executable, str(Path(__file__).resolve().parents[1] / "fake_vllm.py")]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return random_model(CONFIGS["llama"])


def sampler_for(*servers: FakeVllm, stop_ids: Any = STOPS, **settings: Any) -> VllmSampler:
    """A sampler with servers of its own, whatever other tests have used."""
    chosen = {"max_new_tokens": 12, "max_prompt_tokens": 64, **settings}
    decode = chosen.pop("decode", None)
    allowed = chosen.pop("allowed", ())
    options = Vllm(mode="server", urls=tuple(server.url for server in servers), timeout_s=20, **chosen)
    return VllmSampler(options, stop_ids, allowed=allowed, decode=decode, servers=Servers(options))


def rows_of(samples: Samples) -> list[tuple[list[int], list[int]]]:
    return [(p, row.token_ids) for p, rows in zip(samples.prompts, samples.rows_BG, strict=True) for row in rows]


def assert_logps_of(model: nn.Module, samples: Samples, temperature: float = 1.0) -> None:
    """The samples carry the model's own log-probabilities of what was sampled."""
    rows = [row for group in samples.rows_BG for row in group]
    batch = TokenBatch.from_rows(rows_of(samples), masks=[row.sampled for row in rows])
    with torch.no_grad():
        expected_N = token_logps(model, batch, temperature=temperature).logps_N
    sampled_N = torch.tensor([logp for row in rows for logp in row.logps])
    assert (sampled_N - expected_N).abs().max() < 1e-5


@pytest.mark.parametrize("is_tied", [False, True])
def test_rows_are_samples_of_the_model_in_the_order_of_the_prompts(is_tied):
    policy = random_model(Qwen2Config(**LLAMA, tie_word_embeddings=is_tied))
    with FakeVllm() as server:
        samples = sampler_for(server).sample(policy, prompts(), 3, seed=1, temperature=0.7)
    assert samples.prompts == prompts() and [len(rows) for rows in samples.rows_BG] == [3] * len(prompts())
    assert_logps_of(policy, samples, temperature=0.7)
    lengths = {len(row.token_ids) for rows in samples.rows_BG for row in rows}
    assert len(lengths) > 3, "rows end at different times"
    for row in (row for rows in samples.rows_BG for row in rows):
        assert row.finished == (row.token_ids[-1] in STOPS)
        assert row.finished or len(row.token_ids) == 12
        assert not any(token in STOPS for token in row.token_ids[:-1])


def test_a_row_follows_from_its_seed_alone(model):
    with FakeVllm() as server:
        sampler = sampler_for(server)
        among, again, other = (sampler.sample(model, prompts(), 3, seed=seed) for seed in (1, 1, 2))
        alone = sampler.sample(model, prompts()[:1], 3, seed=1)
        of_prompts = sampler.sample(model, prompts(), 2, seed=[5, 6, 7, 8, 9])
        reordered = sampler.sample(model, prompts()[::-1], 2, seed=[9, 8, 7, 6, 5])
        seeds = [request["sampling_params"]["seed"] for request in server.requests[:15]]
    assert among.responses_BG == again.responses_BG != other.responses_BG
    assert alone.responses_BG[0] == among.responses_BG[0]
    assert reordered.responses_BG == of_prompts.responses_BG[::-1]
    assert len(set(seeds)) == 15


def test_several_servers_share_the_prompts_and_give_the_same_rows(model):
    with FakeVllm() as one, FakeVllm() as first, FakeVllm() as second:
        expected = sampler_for(one).sample(model, prompts(), 3, seed=1)
        samples = sampler_for(first, second).sample(model, prompts(), 3, seed=1)
    assert samples.responses_BG == expected.responses_BG
    assert first.calls == second.calls == SYNC
    assert (len(first.requests), len(second.requests)) == (9, 6)
    for server in (first, second):  # a prompt is computed by one server
        requested = [tuple(request["token_ids"]) for request in server.requests]
        assert all(requested.count(prompt) == 3 for prompt in requested)


def test_weights_are_sent_when_they_have_changed_and_only_then():
    policy, other = random_model(CONFIGS["llama"]), random_model(CONFIGS["llama"], scale=0.2)
    with FakeVllm() as server:
        sampler = sampler_for(server)
        before = sampler.sample(policy, prompts(), 2, seed=1)
        sampler.sample(policy, prompts(), 2, seed=2)
        assert server.calls == SYNC
        with torch.no_grad():
            policy.get_output_embeddings().weight.data[7, 3] += 1.0  # version counters do not see this
        after = sampler.sample(policy, prompts(), 2, seed=1)
        assert server.calls == SYNC * 2
        reference = sampler.sample(other, prompts(), 2, seed=1)
        again = sampler.sample(policy, prompts(), 2, seed=1)
        assert server.calls == SYNC * 4 and len(sampler.servers.sent_s) == 4
    assert before.logps_BG != after.logps_BG
    assert after.logps_BG == again.logps_BG
    assert_logps_of(policy, after)
    assert_logps_of(other, reference)


def test_the_fingerprint_knows_every_weight(model):
    policy = random_model(CONFIGS["gpt2"])
    seen = {fingerprint_of(policy, {})}
    for number, parameter in enumerate(policy.parameters(), start=1):
        parameter.data.view(-1)[0] += 1e-6
        seen.add(fingerprint_of(policy, {}))
        assert len(seen) == number + 1
    assert fingerprint_of(model, {}) == fingerprint_of(random_model(CONFIGS["llama"]), {})
    assert fingerprint_of(policy.to(torch.bfloat16), {}) not in seen


ADAPTERS = {"rank": 16, "layers": ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]}
"""Description by a server that takes adapters."""
SWAP = ["lab_describe", "/v1/load_lora_adapter"]


def adapted(base: nn.Module, **settings: Any) -> nn.Module:
    """A policy whose adapter is not zero."""
    pytest.importorskip("peft", reason="pip install 'rlhf_lab[lora]'")
    policy = lora.add_adapter(base, LoRA(**{"rank": 2, "alpha": 4.0, **settings}), seed=0)
    change_adapter(policy)
    return policy


def change_adapter(policy: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.3)


@pytest.mark.parametrize("settings", [{}, {"rslora": True}, {"targets": ["q_proj", "down_proj"]}])
def test_the_base_is_sent_once_and_adapters_by_themselves(settings):
    policy = adapted(random_model(CONFIGS["llama"]), **settings)
    base = lora.without_adapter(policy)
    with FakeVllm(adapters=ADAPTERS, device="cuda") as server:
        sampler = sampler_for(server)
        assert_logps_of(base, sampler.sample(base, prompts(), 2, seed=1))
        assert server.calls == SYNC
        first = sampler.sample(policy, prompts(), 2, seed=1)
        assert_logps_of(policy, first)
        assert server.calls == [*SYNC, *SWAP], "described again, as something is sent"
        (name,) = server.adapted
        change_adapter(policy)
        assert_logps_of(policy, sampler.sample(policy, prompts(), 2, seed=1))
        assert server.calls == [*SYNC, *SWAP, "lab_describe", "/v1/unload_lora_adapter", "/v1/load_lora_adapter"]
        assert list(server.adapted) != [name], "another adapter has another name, and the one before is gone"
        assert_logps_of(base, sampler.sample(base, prompts(), 2, seed=1))
        assert_logps_of(policy, sampler.sample(policy, prompts(), 2, seed=1))
        assert server.calls.count("lab_load") == 1 and server.calls.count("/v1/load_lora_adapter") == 2
        with torch.no_grad():
            policy.get_output_embeddings().weight[7, 3] += 1.0
        assert_logps_of(policy, sampler.sample(policy, prompts(), 2, seed=1))
        assert server.calls.count("lab_load") == 2 and len(server.adapted) == 1


def test_an_adapter_is_sent_merged_where_a_server_does_not_take_it(capsys):
    """Reasons are those of test_vllm_fit.py."""
    policy = adapted(random_model(CONFIGS["llama"]))
    refusing = {"rank": 0, "layers": []}
    with FakeVllm(adapters=ADAPTERS, device="cuda") as one, FakeVllm(adapters=refusing, device="cuda") as other:
        sampler = sampler_for(one, other)
        assert_logps_of(policy, sampler.sample(policy, prompts(), 2, seed=1))
        change_adapter(policy)
        assert_logps_of(policy, sampler.sample(policy, prompts(), 2, seed=1))
        assert one.calls == other.calls == SYNC * 2
        printed = capsys.readouterr().out
        with pytest.raises(ConfigError, match=r"rollout.adapters=swapped: .*set rollout.adapters=auto"):
            sampler_for(one, other, adapters="swapped").sample(policy, prompts(), 2, seed=1)
    assert len(re.findall(r"does not accept adapters .*: the merged model is sent", printed)) == 1, "said once"


@pytest.mark.parametrize(("size", "lost"), [(1e-5, 0.89), (1e-4, 0.32), (1e-3, 0.03)])
def test_what_a_merge_into_bfloat16_loses_of_an_adapter(size, lost):
    """Weights of .02 lie 1.2e-4 apart in bfloat16 (between 2^-6 and 2^-5): most sums with less than half of it are the
    weight. `lost` is the relative error of what was added, for a product of rank 16 with this standard deviation."""
    generator = torch.Generator().manual_seed(0)
    weight = (0.02 * torch.randn(512, 512, generator=generator)).bfloat16().float()
    product = torch.randn(512, 16, generator=generator) @ torch.randn(16, 512, generator=generator)
    product *= size / product.std()
    added = (weight + product).bfloat16().float() - weight
    assert float((added - product).norm() / product.norm()) == pytest.approx(lost, abs=0.02)


@pytest.mark.parametrize(
    ("chosen", "device", "stored", "is_swapped"),
    [
        ("auto", "cpu", "float32", False),
        ("auto", "cuda", "float32", True),
        ("auto", "cpu", "bfloat16", True),
        ("swapped", "cpu", "float32", True),
        ("merged", "cuda", "bfloat16", False),
    ],
)
def test_where_adapters_are_sent_by_themselves(chosen, device, stored, is_swapped, capsys):
    policy = adapted(store(random_model(CONFIGS["llama"]), stored, "cpu"))
    with FakeVllm(adapters=ADAPTERS, device=device, dtype=stored) as server:
        sampler_for(server, adapters=chosen).sample(policy, prompts(), 1, seed=1)
        assert server.calls == (SYNC + SWAP[1:] if is_swapped else SYNC)
        assert len(server.adapted) == is_swapped
    assert not capsys.readouterr().out


def test_rows_of_another_adapter_are_refused():
    policy = adapted(random_model(CONFIGS["llama"]))
    with FakeVllm(adapters=ADAPTERS) as server:
        sampler = sampler_for(server, adapters="swapped")
        response = server.response
        server.response = lambda body: {**response(body), "model": "another"}
        with pytest.raises(ServerFailed, match=r"\(another\) instead of .*another run uses the server"):
            sampler.sample(policy, prompts(), 1, seed=1)


def test_adapters_of_earlier_stages_lie_on_four_bits_beside_the_new_one(tmp_path):
    """Two policies on the same four bits differ in nothing that is packed: the fingerprint must know what lies on it.

    With all of it removed the numbers of the packed base remain, which are in both."""
    pytest.importorskip("bitsandbytes", reason="pip install 'rlhf_lab[quantized]'")
    base = random_model(Qwen2Config(**{**LLAMA, "hidden_size": 64, "intermediate_size": 128}))
    packed = store(base, "nf4", "cpu")
    before = fingerprint_of(packed, lora.products_of(packed))
    plain_base = lora.without_products(packed)
    layer = packed.model.layers[0].mlp.down_proj
    add_product(layer, torch.full((3, 128), 0.1), torch.full((64, 3), 0.1))
    earlier = lora.products_of(packed)
    assert fingerprint_of(packed, earlier)[0] == before[0] and fingerprint_of(packed, earlier) != before
    policy = adapted(packed)
    products = lora.products_of(policy)
    assert fingerprint_of(policy, products)[0] == before[0]
    name = "model.layers.0.mlp.down_proj"
    a, b = products[name]
    assert a.shape == (5, 128) and b.shape == (64, 5) and lora.rank_of(products) == 5
    own = policy.get_submodule(name)
    delta = 0.03 * torch.ones(64, 128) + own.get_delta_weight("default")  # 3 · 0.1 · 0.1 of the earlier stage
    torch.testing.assert_close(b @ a, delta)
    bare = lora.without_products(policy).get_submodule(name).weight
    assert torch.equal(bare, plain_base.get_submodule(name).weight)


def test_settings_reach_the_server_and_mean_the_same(model):
    with FakeVllm() as server:
        samples = sampler_for(server, top_k=2, top_p=0.9).sample(model, prompts(), 1, seed=1)
        greedy = sampler_for(server).sample(model, prompts(), 1, seed=1, temperature=0.0)
        allowed = sampler_for(server, allowed=[70, 71, *STOPS]).sample(model, prompts(), 2, seed=1)
        narrow, simple, only = (server.requests[i]["sampling_params"] for i in (0, 5, 10))
    assert (narrow["top_k"], narrow["top_p"], narrow["max_tokens"], narrow["logprobs"]) == (2, 0.9, 12, 0)
    assert simple["temperature"] == 0.0 and "seed" not in simple and "allowed_token_ids" not in simple
    assert only["allowed_token_ids"] == [70, 71, *STOPS]
    assert {token for _, response in rows_of(allowed) for token in response} <= {70, 71, *STOPS}
    local = LocalSampler(Local(max_new_tokens=12, max_prompt_tokens=64), STOPS)
    assert greedy.responses_BG == local.sample(model, prompts(), 1, seed=9, temperature=0.0).responses_BG
    assert max(len(set(response)) for _, response in rows_of(samples)) > 1


def test_an_opening_counts_as_tokens_of_its_response(model):
    """At most 12 tokens of a response: openings of 0, 5 and 11 leave 12, 7 and 1, and so does one that is too long."""
    opened = [0, 5, 11, 12]
    with FakeVllm() as server:
        sampler_for(server).sample(model, [list(range(4, 6 + length)) for length in opened], 1, seed=1, opened=opened)
        most = {len(r["token_ids"]) - 2: r["sampling_params"]["max_tokens"] for r in server.requests}
    assert most == {0: 12, 5: 7, 11: 1, 12: 1}


@pytest.mark.parametrize("limit", [0, 20])
def test_episodes_of_several_turns(model, limit):
    """As with the lab's own sampler: what is answered behind a turn is read, and a cut turn ends its row."""
    answer = [7, 8, 9]
    requested: list[int] = []

    def next_turn(row: int, tokens: list[int]) -> list[int]:
        requested.append(row)
        return answer if requested.count(row) < 3 else []

    with FakeVllm() as server:
        sampler = sampler_for(server, max_episode_tokens=limit)
        samples = sampler.sample(model, prompts(), 3, seed=1, next_turn=next_turn, max_turns=3)
        selected = [request["sampling_params"] for request in server.requests]
        single = sampler.sample(model, prompts(), 3, seed=1)
    assert_logps_of(model, samples)
    by_length = sorted(range(len(prompts())), key=lambda i: len(prompts()[i]))
    first_wave = [i * 3 + g for i in by_length for g in range(3)]
    assert requested[:15] == first_wave, "an environment is asked in one order, whatever is answered first"
    assert len({values["seed"] for values in selected}) == len(selected) > 15, (
        "every turn of every row is drawn by itself"
    )
    if limit:  # a later turn may have what earlier turns and answers have left of the row
        assert (
            {values["max_tokens"] for values in selected[:15]} == {12} != {values["max_tokens"] for values in selected}
        )
    turns = 0
    for rows, responses in zip(samples.rows_BG, single.rows_BG, strict=True):
        for row, response in zip(rows, responses, strict=True):
            start = sum(response.sampled)
            assert row.token_ids[:start] == response.token_ids, "a first turn is drawn as a reply is"
            spans = [span for span in _spans(row.sampled) if not span[0]]
            assert all(row.token_ids[a:b] == answer for _, a, b in spans)
            turns = max(turns, 1 + len(spans))
            assert len(row.token_ids) <= (limit or 72) and row.sampled[-1]
    assert turns == (3 if limit == 0 else turns) and turns > 1


def _spans(flags: list[bool]) -> list[tuple[bool, int, int]]:
    edges = [0, *(i for i in range(1, len(flags)) if flags[i] != flags[i - 1]), len(flags)]
    return [(flags[a], a, b) for a, b in pairwise(edges)]


def test_a_text_ends_a_turn_with_the_token_that_completes_it(model):
    def decode(tokens: list[int]) -> str:
        return " ".join(f"<{token}>" for token in tokens)

    with FakeVllm() as server:
        free = sampler_for(server, stop_ids=[EOS]).sample(model, prompts(), 2, seed=1)
        text = f"<{free.responses_BG[0][0][4]}>"
        stopping = sampler_for(server, stop_ids=[EOS], stop=(text,), decode=decode).sample(model, prompts(), 2, seed=1)
    for (_, full), (_, cut) in zip(rows_of(free), rows_of(stopping), strict=True):
        words = [f"<{token}>" for token in full]
        length = words.index(text) + 1 if text in words else len(full)
        assert cut == full[:length]
    assert len(stopping.responses_BG[0][0]) <= 5 and stopping.finished_BG[0][0]
    assert len(stopping.logps_BG[0][0]) == len(stopping.responses_BG[0][0])


def test_a_server_that_dies_is_named(model):
    with FakeVllm() as alive, FakeVllm(dies_after=3) as dying:
        sampler = sampler_for(alive, dying, batch_rows=2)
        with pytest.raises(ServerFailed) as error:
            sampler.sample(model, prompts(), 4, seed=1)
    assert dying.url in str(error.value) and alive.url not in str(error.value)
    assert "restart it and repeat the command" in str(error.value)


def test_a_server_that_is_not_there_is_named(model):
    with FakeVllm() as server:
        sampler = sampler_for(server)
    with pytest.raises(ServerFailed, match=rf"{server.url} does not answer /collective_rpc \(ConnectionRefused"):
        sampler.sample(model, prompts(), 1, seed=1)


def test_weights_that_are_not_taken_are_sent_again(model, monkeypatch, tmp_path):
    with FakeVllm() as server:
        sampler = sampler_for(server, weights_folder=str(tmp_path))
        monkeypatch.setattr(type(model), "save_pretrained", lambda self, directory: None)
        with pytest.raises(ServerFailed, match=r"rejected /collective_rpc: 500 .* has no safetensors files"):
            sampler.sample(model, prompts(), 1, seed=1)
        assert server.calls[-1] == "/resume" and not server.paused
        monkeypatch.undo()
        assert_logps_of(model, sampler.sample(model, prompts(), 1, seed=1))
    assert not list(tmp_path.rglob("*.safetensors")), "weights are not left behind"


def test_a_server_with_the_weights_of_another_run_is_refused(model):
    with FakeVllm() as server:
        sampler = sampler_for(server)
        sampler.sample(model, prompts(), 1, seed=1)
        server.version = "of another"
        with pytest.raises(
            ServerFailed, match=r"with weights of another \(policy\) instead of .*another run uses the server"
        ):
            sampler.sample(model, prompts(), 1, seed=1)


@pytest.mark.parametrize(
    ("described", "says"),
    [
        ({"logprobs": "raw_logprobs"}, "start it with --logprobs-mode processed_logprobs"),
        ({"config": {"rope_parameters": {"rope_theta": 7.0}}}, r"rope_parameters.rope_theta is 7.0 instead of 10000.0"),
        ({"positions": 20}, r"a row may have 24 tokens, but the vLLM server supports 20; set rollout.context_tokens"),
    ],
)
def test_a_server_that_does_not_fit_is_refused(model, described, says):
    with FakeVllm(**described) as server, pytest.raises(ConfigError, match=says):
        sampler_for(server).sample(model, prompts(), 1, seed=1)


def test_probabilities_that_are_not_finite_are_refused(model, monkeypatch):
    def without_logps(self, body):
        content = [{"token_id": 4, "logprob": None}]
        choice = {"token_ids": [4], "logprobs": {"content": content}, "weight_versions": [{"version": self.version}]}
        return {"choices": [choice], "model": body["model"]}

    monkeypatch.setattr(FakeVllm, "response", without_logps)
    with FakeVllm() as server, pytest.raises(NumericError, match="are not finite"):
        sampler_for(server).sample(model, prompts(), 1, seed=1)


def test_an_idle_connection_that_was_closed_is_opened_again(model):
    with FakeVllm() as server:
        client = VllmClient(server.url, timeout_s=5)
        assert client.is_healthy()
        (connection,) = client._idle
        connection.sock.close()
        assert client.is_healthy()


def test_samplers_of_one_stage_share_their_servers():
    options = Vllm(mode="server", urls=("http://127.0.0.1:9",))
    first, second = VllmSampler(options, STOPS), VllmSampler(Vllm(**vars(options)), STOPS)
    assert first.servers is second.servers
    number = id(first.servers)
    del first, second
    gc.collect()
    assert number and servers_of(options).sent_s == []


@pytest.mark.slow
def test_a_server_is_started_when_it_is_needed_and_ended():
    model = random_model(CONFIGS["llama"])  # its config has never been saved, which changes it
    options = Vllm(mode="spawn", timeout_s=60, max_new_tokens=12, max_prompt_tokens=64, context_tokens=200)
    servers = Servers(options, partial(Server, command=FAKE))
    sampler = VllmSampler(options, STOPS, servers=servers)
    assert_logps_of(model, sampler.sample(model, prompts(), 2, seed=1))
    started = servers._server
    assert started is not None and started.is_running and len(servers.sent_s) == 1
    with torch.no_grad():
        model.get_output_embeddings().weight[9, 9] += 0.5
    assert_logps_of(model, sampler.sample(model, prompts(), 2, seed=1))
    assert servers._server is started, "other weights need no other server"

    killed = started._process

    def kill(row: int, tokens: list[int]) -> list[int]:
        if killed.poll() is None:
            os.kill(killed.pid, signal.SIGKILL)
            killed.wait()
        return [7, 8, 9]

    with pytest.raises(ServerFailed, match=r"(?s)does not answer .* The server has ended\. Its last output"):
        sampler.sample(model, prompts(), 2, seed=1, next_turn=kill, max_turns=2)
    assert_logps_of(model, sampler.sample(model, prompts(), 2, seed=1))
    process = servers._server._process
    assert process.pid != killed.pid
    sampler.sample(random_model(CONFIGS["gpt2"]), prompts(), 1, seed=1)
    assert process.poll() is not None, "another architecture needs another server, in the place of the one before"
    last = servers._server._process
    del sampler, servers, started
    gc.collect()
    assert last.poll() is not None, "a server ends with the sampler that started it"


@pytest.mark.parametrize(("adapters", "level"), [("merged", 2), ("swapped", 1)])
def test_a_server_that_shares_the_gpu_sleeps_between_two_samples(adapters, level):
    """It receives again what it has forgotten: all weights, or nothing for a base that is in host memory."""
    policy = adapted(random_model(CONFIGS["llama"]))
    change_adapter(policy)
    options = Vllm(mode="colocate", max_new_tokens=12, max_prompt_tokens=64, adapters=adapters)
    with FakeVllm(adapters=ADAPTERS) as fake:
        running = SimpleNamespace(url=fake.url, is_running=True, last_lines=lambda: "", close=lambda: None)
        started_with = []

        def start(serving: Serving, timeout_s: float) -> Any:
            started_with.append(serving)
            return running

        sampler = VllmSampler(options, STOPS, servers=Servers(options, start))
        for _ in range(2):
            assert_logps_of(policy, sampler.sample(policy, prompts(), 2, seed=1))
            assert fake.asleep
            change_adapter(policy)
        assert [serving.sleeps for serving in started_with] == [True]
        assert fake.calls.count(f"/sleep?level={level}") == 2 and fake.calls.count("/wake_up") == 1
        assert fake.calls.count("lab_load") == (2 if level == 2 else 1)


def test_a_server_that_cannot_start_says_why(tmp_path):
    serving = Serving(tmp_path, "float16", "cpu", 128)
    refuses_dtype = (
        "import sys\n"
        "print('loading', 'RuntimeError: no such dtype', 'bye', sep=chr(10))\n"
        "sys.exit(3 if 'float16' in sys.argv else 0)"
    )
    with pytest.raises(ServerFailed, match=r"(?s)ended while starting \(exit status 3\):\nRuntimeError: no such dtype"):
        Server(serving, command=[sys.executable, "-c", refuses_dtype], timeout_s=60)
    with pytest.raises(ServerFailed, match=r"did not answer within 0.1 s"):
        Server(serving, command=[sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.1)


def test_what_a_server_is_started_with(tmp_path):
    words = Serving(tmp_path, "float32", "cpu", 128, tensor_parallel=2).arguments("127.0.0.1", 8000)
    assert words[words.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert words[words.index("--generation-config") + 1] == "vllm"
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert "--no-enable-chunked-prefill" in words and "--gpu-memory-utilization" not in words
    on_gpu = Serving(tmp_path, "bfloat16", "cuda", 128, gpu_memory=0.4).arguments("127.0.0.1", 8000)
    assert on_gpu[on_gpu.index("--gpu-memory-utilization") + 1] == "0.4"
    assert "--no-enable-chunked-prefill" not in on_gpu and "--enable-lora" not in on_gpu
    assert "--enable-sleep-mode" not in on_gpu
    sleeping = Serving(tmp_path, "bfloat16", "cuda", 128, sleeps=True).arguments("127.0.0.1", 8000)
    assert "--enable-sleep-mode" in sleeping
    assert "--enable-sleep-mode" not in Serving(tmp_path, "bfloat16", "cpu", 128, sleeps=True).arguments("127.0.0.1", 1)
    adapting = Serving(tmp_path, "float32", "cpu", 128, adapter_rank=server_rank(9)).arguments("127.0.0.1", 8000)
    assert "--enable-lora" in adapting and adapting[adapting.index("--max-lora-rank") + 1] == "16"
    assert [server_rank(rank) for rank in (0, 1, 512, 513)] == [0, 1, 512, 0]


def sample_and_write(directory: Path, url: str) -> None:
    """Sample from a server in one of two processes, and write its samples and how often it sent weights."""
    options = Vllm(mode="server", urls=(url,), max_new_tokens=12, max_prompt_tokens=64)
    sampler = VllmSampler(options, STOPS, servers=Servers(options))
    samples = sampler.sample(random_model(CONFIGS["llama"]), prompts(), 3, seed=1)
    written = json.dumps([samples.responses_BG, len(sampler.servers.sent_s)])
    (directory / f"{ranks.rank()}.json").write_text(written)


@pytest.mark.slow
def test_two_processes_divide_the_prompts_and_the_main_one_sends_the_weights(model, tmp_path):
    with FakeVllm() as server:
        expected = sampler_for(server).sample(model, prompts(), 3, seed=1)
        before = len(server.requests)
        together(sample_and_write, tmp_path, server.url)
        assert len(server.requests) - before == 15, "no row is asked for twice"
        assert server.calls == SYNC * 2
    written = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [responses for responses, _ in written] == [expected.responses_BG] * 2
    assert [sent for _, sent in written] == [1, 0]


def fake_vllm(directory: Path, lines: str) -> dict[str, str]:
    """The environment variables with which vLLM's server leaves a file behind and then does what `lines` say."""
    (directory / "vllm/entrypoints/openai").mkdir(parents=True)
    server = (
        "import os, pathlib, signal, tempfile, time\n"
        "pathlib.Path(tempfile.gettempdir(), 'socket').touch()\n"
        f"pathlib.Path({str(directory / 'started')!r}).write_text(str(os.getpid()))\n"
    )
    (directory / "vllm/entrypoints/openai/api_server.py").write_text(server + lines)
    return {**os.environ, "PYTHONPATH": str(directory)}


def test_a_server_ends_when_the_lab_is_killed(tmp_path):
    """Without a word: what starts a server looks whether its parent is still there, and removes what it left."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = fake_vllm(tmp_path, "time.sleep(60)\n") | {"TMPDIR": str(temporary)}
    starter = (
        "import os, subprocess, sys, time\n"
        f"command = [sys.executable, {str(PLUGIN / 'lab_serve.py')!r}, str(os.getpid()), {str(temporary)!r}]\n"
        "subprocess.Popen(command, start_new_session=True)\n"
        "time.sleep(60)\n"
    )
    lab = subprocess.Popen([sys.executable, "-c", starter], cwd=tmp_path, env=environment)
    started = tmp_path / "started"
    _wait_until(lambda: started.exists() and bool(started.read_text()))
    assert (temporary / "socket").exists()
    process = int(started.read_text())
    lab.kill()
    lab.wait()
    _wait_until(lambda: not Path(f"/proc/{process}").exists() or _is_zombie(process))
    assert not temporary.exists()


def test_a_server_that_does_not_answer_leaves_nothing(tmp_path, monkeypatch):
    """It is stopped by a signal, for which it has no handler while it starts."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    script = "import os, pathlib, time; pathlib.Path(os.environ['TMPDIR'], 'socket').touch(); time.sleep(60)"
    with pytest.raises(ServerFailed, match=r"did not answer within 1 s"):
        Server(Serving(tmp_path, "float32", "cpu", 64), timeout_s=1, command=[sys.executable, "-c", script])
    assert not list(temporary.iterdir())


def _is_zombie(process: int) -> bool:
    """Return True if a process has exited and nobody has read its status yet."""
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def _wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not after {seconds:g} s"
        time.sleep(0.1)


def test_a_server_is_not_started_for_several_machines(model, monkeypatch):
    """Its address would be another server's, or nobody's, on the second one."""
    for name, value in {"RANK": "0", "MASTER_ADDR": "here", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    options = Vllm(mode="spawn")
    with pytest.raises(ConfigError, match=r"on its loopback interface, but this stage runs on 2 machines"):
        VllmSampler(options, STOPS, servers=Servers(options)).sample(model, prompts(), 1, seed=1)
