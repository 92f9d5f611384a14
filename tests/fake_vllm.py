"""A server with the endpoints of vLLM that the lab uses, around the lab's own sampler; for tests where vLLM is not.

In a thread: `with FakeVllm() as server`. As a process: `python tests/fake_vllm.py --host 127.0.0.1 --port 8000 …`.
"""

from __future__ import annotations

import argparse
import copy
import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rlhf_lab.models.lora import apply_adapter
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local

LOADING = threading.Lock()
"""Lock while a server of this process loads a model. `from_pretrained` replaces functions of transformers and torch
(`PreTrainedModel.tie_weights`, `torch.linspace`, `torch.nn.init`) and puts back what it found. Of two that overlap the
later one finds the replacements, and leaves them: every tied model of the process then has its head on "meta"."""


class FakeVllm(ThreadingHTTPServer):
    """Stores the weights that it received, and samples one row per request.

    Args:
        dies_after: responses after which it closes connections without an answer, and takes no more.
        describes: what differs from a server that fits.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int = 0, *, dies_after: int | None = None, **describes: Any):
        super().__init__(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.dies_after = dies_after
        self.described = {"dtype": "float32", "positions": 512, "logprobs": "processed_logprobs", "vocabulary": 1}
        self.described |= {
            "identity": uuid.uuid4().hex,
            "device": "cpu",
            "config": {},
            "adapters": {"rank": 0, "layers": []},
            "heads": {"size": 16, "known": []},
        }
        self.described |= describes
        self.model: Any = None
        self.adapted: dict[str, Any] = {}  # name of an adapter → the model with it
        self.version = "default"
        self.paused = False
        self.asleep = False
        self.calls: list[str] = []  # everything but samples and health checks, in order
        self.requests: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def __enter__(self) -> FakeVllm:
        # `shutdown` waits for the next poll, which is half a second apart by default
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def control(self, path: str, body: dict[str, Any]) -> Any:
        """Answer everything but a request for a reply."""
        self.calls.append(body.get("method", path))
        if path.startswith("/pause"):
            self.paused = True
        elif path == "/resume":
            self.paused = False
        elif path == "/update_weight_version":
            self.version = body["new_version"]
        elif path.startswith("/sleep"):
            self.asleep = True
            if path.endswith("level=2"):
                self.model = None
        elif path == "/wake_up":
            self.asleep = False
        elif path == "/reset_prefix_cache":
            return {"success": True}
        elif body.get("method") == "lab_describe":
            return {"results": [self.described]}
        elif body.get("method") == "lab_load":
            assert self.paused, "weights change under rows that are being sampled"
            (directory,) = body["args"]
            if not list(Path(directory).glob("*.safetensors")):
                raise FileNotFoundError(f"{directory} has no safetensors files that this server can read")
            with LOADING:
                self.model = AutoModelForCausalLM.from_pretrained(directory).eval()
            return {"results": [{"loaded": 1}]}
        elif path == "/v1/load_lora_adapter":
            assert body["lora_name"] not in self.adapted, "rows of two adapters could share what is cached of a prompt"
            self.adapted[body["lora_name"]] = apply_adapter(copy.deepcopy(self.model), body["lora_path"])
        elif path == "/v1/unload_lora_adapter":
            del self.adapted[body["lora_name"]]
        return {}

    def response(self, body: dict[str, Any]) -> dict[str, Any]:
        """One choice, as vLLM words it."""
        assert not self.asleep, "a server that sleeps samples nothing"
        sampling = body["sampling_params"]
        settings = Local(
            max_new_tokens=sampling["max_tokens"],
            max_prompt_tokens=512,
            top_k=sampling["top_k"],
            top_p=sampling["top_p"],
        )
        sampler = LocalSampler(settings, sampling["stop_token_ids"], allowed=sampling.get("allowed_token_ids", ()))
        seed = sampling.get("seed", 0)
        model = self.adapted.get(body["model"], self.model)
        samples = sampler.sample(model, [body["token_ids"]], 1, seed, temperature=sampling["temperature"])
        row = samples.rows_BG[0][0]
        content = [{"token_id": t, "logprob": p} for t, p in zip(row.token_ids, row.logps, strict=True)]
        choice = {
            "index": 0,
            "finish_reason": "stop" if row.finished else "length",
            "token_ids": row.token_ids,
            "logprobs": {"content": content},
            "weight_versions": [{"version": self.version, "start": 0, "end": len(content)}],
        }
        return {"choices": [choice], "model": body["model"]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as vLLM's are
    server: FakeVllm

    def do_GET(self) -> None:
        names = ["policy", *self.server.adapted]
        self._answer(200, {"data": [{"id": name} for name in names]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        server = self.server
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        if self.path != "/inference/v1/generate":
            try:
                self._answer(200, server.control(self.path, body))
            except FileNotFoundError as error:
                self._answer(500, {"error": {"message": str(error)}})
            return
        with server.lock:
            server.requests.append(body)
            is_dead = server.dies_after is not None and len(server.requests) > server.dies_after
            answer = None if is_dead else server.response(body)
        if answer is None:
            server.socket.close()
            self.connection.close()
            self.close_connection = True
        else:
            self._answer(200, answer)

    def _answer(self, status: int, values: Any) -> None:
        content = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-model-len", type=int)
    options, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    with FakeVllm(options.port, positions=options.max_model_len):
        while True:
            time.sleep(60)
