"""The lab and the worker of Parler-TTS: messages, gradients through the boundary, and a worker that fails."""

from __future__ import annotations

import gc
import os
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.pinned_packages import MARKER
from rlhf_lab.losses.preference import PairLogps, dpo
from rlhf_lab.packs.speech.parler.client import Parler, SpeechPrompt, SpokenClip, WorkerFailed
from rlhf_lab.packs.speech.parler.environment import PARLER
from rlhf_lab.packs.speech.parler.protocol import Closed, Malformed, WorkerMessage, receive, send

FAKE = Path(__file__).with_name("fake_parler_worker.py")


@pytest.fixture
def pipe():
    source, sink = os.pipe()
    yield source, sink
    for descriptor in (source, sink):
        os.close(descriptor)


@pytest.fixture
def packages(tmp_path):
    """A directory that passes for an environment."""
    directory = tmp_path / "environment"
    directory.mkdir()
    (directory / MARKER).write_text(PARLER.pins(), encoding="ascii")
    return directory


@pytest.fixture
def start(packages):
    """Starts a client of the fake worker, in one of its ways to behave."""
    started = []

    def start(behaviour: str = "well", **settings) -> Parler:
        settings = {"timeout_s": 60.0, **settings}
        parler = Parler("model", directory=packages, command=(sys.executable, str(FAKE), behaviour), **settings)
        started.append(parler)
        return parler

    yield start
    for parler in started:
        parler.close()


def clip(codes, text: str = "Hello.", is_finished: bool = True) -> SpokenClip:
    codes_TK = np.array(codes, dtype=np.int64)
    return SpokenClip(SpeechPrompt(text, "A voice."), codes_TK, is_finished, np.zeros(codes_TK.shape), 0.0)


def test_a_message_arrives_as_it_was_sent(pipe):
    source, sink = pipe
    arrays = {"a": np.arange(6, dtype=np.int64).reshape(2, 3), "none": np.zeros((0, 4), np.float32)}
    arrays |= {"b": np.array([True, False]), "x": np.array(1.5)}
    send(sink, WorkerMessage({"verb": "say", "arguments": {"text": "äöü ✓"}}, arrays))
    message = receive(source, timeout_s=5)
    assert message.header == {"verb": "say", "arguments": {"text": "äöü ✓"}}
    assert list(message.arrays) == list(arrays)
    for name, array in arrays.items():
        assert message.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(message.arrays[name], array)
    with pytest.raises(TypeError, match="array 'a' has dtype object"):
        send(pipe[1], WorkerMessage({}, {"a": np.array([object()])}))


@pytest.mark.parametrize(
    "content",
    [
        b"loading checkpoint shards",
        b"RLP1" + struct.pack("<I", 2**31),
        b"RLP1" + struct.pack("<I", 35) + b'{"arrays": [["a", "object", [1]]]}  ',
        b"RLP1" + struct.pack("<I", 35) + b'{"arrays": [["a", "int64", [-1]]]}  ',
        b"RLP1" + struct.pack("<I", 43) + b'{"arrays": [["a", "int64", [9999999999]]]}  ',
    ],
)
def test_what_is_no_message_is_refused(pipe, content):
    os.write(pipe[1], content)
    with pytest.raises(Malformed):
        receive(pipe[0], timeout_s=5)


def test_a_message_that_is_cut_or_late(pipe):
    source, sink = pipe
    os.write(sink, b"RLP1")
    with pytest.raises(TimeoutError):
        receive(source, timeout_s=0.05)
    other, end = os.pipe()
    os.write(end, b"RLP1")
    os.close(end)
    with pytest.raises(Closed):
        receive(other)
    os.close(other)
    # nobody reads
    other, end = os.pipe()
    os.close(other)
    with pytest.raises(Closed):
        send(end, WorkerMessage({"verb": "say"}))
    os.close(end)


def test_a_loss_of_the_lab_trains_through_the_boundary(start):
    """The fake's log-probability of code c under weight w is w·(c + 1); DPO's gradient is computed by hand."""
    parler = start()
    assert (parler.codebooks, parler.size, parler.rate) == (2, 4, 8000)
    pair = [clip([[1, 2], [0, 3]]), clip([[1, 0]], is_finished=False)]
    logps = parler.logps(pair)
    assert logps.clips_N.tolist() == [10.0 - 0.5, 3.0]  # Σ(c + 1), and −0.5 for ending
    assert logps.means_N.tolist() == [9.5 / 5, 3 / 2]
    assert logps.codebooks_NK.tolist() == [[3 - 0.5, 7.0], [2.0, 1.0]]
    assert logps.clips_N.sum().item() == logps.codebooks_NK.sum().item()
    reference = PairLogps(torch.tensor([9.5]), torch.tensor([3.0]))
    output = dpo(PairLogps(logps.clips_N[:1], logps.clips_N[1:]), reference, beta=0.1)
    output.per_pair_B.mean().backward()
    # policy = reference: dL/dm = −½, m = 0.1·(w·10 − w·3 + …), so dL/dw = −0.05·7
    assert parler.step(lr=1.0)["all"] == pytest.approx(0.35)
    again = parler.logps(pair, with_graph=False)
    assert again.clips_N[0].item() == pytest.approx(10 * 1.35 - 0.5)
    assert not again.clips_N.requires_grad


def test_clips_and_audio(start):
    parler = start(max_frames=3)
    prompts = [SpeechPrompt("One.", "A."), SpeechPrompt("Two.", "B.")]
    clips = parler.generate(prompts, clips=2, seed=7)
    assert [spoken.prompt.text for spoken in clips] == ["One.", "One.", "Two.", "Two."]
    assert [len(spoken.codes_TK) for spoken in clips] == [1, 2, 1, 2]
    assert [len(audio.samples_N) for audio in parler.decode(clips)] == [10, 20, 10, 20]
    same = parler.generate(prompts, clips=2, seed=7)
    other = parler.generate(prompts, clips=2, seed=8)
    assert [c.codes_TK.tolist() for c in clips] == [c.codes_TK.tolist() for c in same]
    assert [c.codes_TK.tolist() for c in clips] != [c.codes_TK.tolist() for c in other]


def test_wrong_clips_are_named(start):
    parler = start()
    with pytest.raises(ConfigError) as error:
        parler.logps([clip([[0, 1]]), clip([[0, 4]]), clip([[0, 1, 2]])])
    assert error.value.problems == [
        "clip 1 has codes outside 0…3",
        "clip 2 has codes of shape (1, 3); expected (frames, 2)",
    ]
    with pytest.raises(ConfigError, match="clips is empty"):
        parler.decode([])


def test_a_request_that_fails_leaves_the_worker_alive(start):
    parler = start()
    with pytest.raises(WorkerFailed, match=r"save: .* OSError: no room\n.*Traceback"):
        parler.save(Path("nowhere"))
    assert parler.decode([clip([[0, 1]])])


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        ("dies", r"decode: the worker of Parler-TTS has exited \(status 3\). Its last output:\nout of memory"),
        ("hangs", r"did not answer within 1 s \(timeout_s\) \(status -9\)"),
        ("prints", r"sent an invalid answer"),
    ],
)
def test_a_worker_that_fails(start, behaviour, says):
    parler = start(behaviour)
    parler.timeout_s = 1.0
    with pytest.raises(WorkerFailed, match=says):
        parler.decode([clip([[0, 1]])])
    with pytest.raises(WorkerFailed, match="has exited; create a new Parler"):
        parler.decode([clip([[0, 1]])])


def test_a_worker_that_does_not_start(start):
    with pytest.raises(WorkerFailed, match=r"start: .* has exited \(status 1\)[\s\S]*ImportError: no parler"):
        start("absent")


def test_no_worker_outlives_its_client(packages):
    command = (sys.executable, str(FAKE), "well")
    with Parler("model", directory=packages, command=command) as parler:
        closed = parler._process
        assert closed.poll() is None
    assert closed.poll() == 0
    parler = Parler("model", directory=packages, command=command)
    forgotten = parler._process
    del parler
    gc.collect()
    assert forgotten.poll() == 0


def test_no_worker_outlives_the_lab(packages, tmp_path):
    """The lab is killed while its worker computes: the worker notices that it has another parent."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from rlhf_lab.packs.speech.parler.client import Parler\n"
        f"p = Parler('m', directory=Path({str(packages)!r}), command=({sys.executable!r}, {str(FAKE)!r}, 'hangs'))\n"
        f"Path({str(tmp_path / 'pid')!r}).write_text(str(p._process.pid))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code])
    worker = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not _is_running(worker):
            return
        time.sleep(0.1)
    pytest.fail("the worker still runs 10 s after the lab was killed")


def _is_running(process: int) -> bool:
    """False for a process that has exited, also while nobody has read its status."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
