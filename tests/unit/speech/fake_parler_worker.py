"""A worker without Parler-TTS: one weight w, log-probability w·(c + 1) of code c. Its argument says how it behaves."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from rlhf_lab.packs.speech.parler.protocol import WorkerMessage, end_with, send, serve


class Fake:
    def __init__(self) -> None:
        self.weight, self.gradient, self.codes = 1.0, 0.0, np.zeros((0, 2))

    def load(self, arrays, *, directory, dtype, device, options):
        return {"codebooks": 2, "size": 4, "rate": 8000, "parameters": 1, "trained": 1}, {}

    def save(self, arrays, *, directory, with_optimizer):
        raise OSError("no room")

    def generate(self, arrays, *, prompts, clips, max_frames, temperature, seeds):
        frames_N = [1 + number % clips for number in range(len(prompts) * clips)]
        seed_F = np.repeat(np.repeat(seeds, clips), frames_N)
        codes_FK = np.stack([seed_F % 4, seed_F // 4 % 4], 1).astype(np.int64)
        results = {"codes_FK": codes_FK, "frames_N": np.array(frames_N), "is_ended_N": np.full(len(frames_N), True)}
        logps = {"logps_FK": self.weight * (codes_FK + 1.0), "end_logps_N": np.full(len(frames_N), -0.5)}
        return {}, results | logps

    def logps(self, arrays, *, prompts, clips_of_each, temperature, with_graph):
        assert sum(clips_of_each) == len(arrays["frames_N"])
        self.codes = arrays["codes_FK"]
        ends_N = np.where(arrays["is_ended_N"], -0.5, 0.0)
        return {"graph": 1}, {"logps_FK": self.weight * (self.codes + 1.0), "end_logps_N": ends_N}

    def backward(self, arrays, *, graph):
        self.gradient += float((arrays["logps_FK"] * (self.codes + 1.0)).sum())
        return {}, {}

    def step(self, arrays, *, lr, weight_decay, max_grad_norm):
        self.weight -= lr * self.gradient
        norm, self.gradient = abs(self.gradient), 0.0
        return {"all": norm}, {}

    def decode(self, arrays):
        if BEHAVIOUR == "dies":
            print("out of memory", file=sys.stderr, flush=True)
            os._exit(3)
        if BEHAVIOUR == "hangs":
            time.sleep(60)
        if BEHAVIOUR == "prints":
            os.write(sys.stdout.fileno(), b"decoding ...\n")
        samples_N = arrays["frames_N"] * 10
        return {}, {"samples": np.zeros(samples_N.sum(), np.float32), "samples_N": samples_N}


BEHAVIOUR = sys.argv[1]
if BEHAVIOUR == "absent":
    raise ImportError("no parler")
end_with(os.getppid())
send(sys.stdout.fileno(), WorkerMessage({"values": {"ready": True}}))
fake = Fake()
verbs = ("load", "save", "generate", "logps", "backward", "step", "decode")
serve(sys.stdin.fileno(), sys.stdout.fileno(), {verb: getattr(fake, verb) for verb in verbs})
