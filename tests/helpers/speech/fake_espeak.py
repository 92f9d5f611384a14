"""Stands in for the program espeak-ng: tones whose pitch, movement, rate and level follow the options.

Run as a program. Each call that speaks is appended to the file that FAKE_ESPEAK_CALLS names, one JSON list a line.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import sys
import wave
from array import array

RATE = 22050
KNOWN = re.compile(r"(en|en-us|en-gb-scotland)\+(m3|f2|whisper|whisperf)")


def speak(arguments: list[str]) -> None:
    options = {name: arguments[arguments.index(name) + 1] for name in ("-v", "-s", "-p", "-a", "-w")}
    if not KNOWN.fullmatch(options["-v"]):
        sys.exit("Error: The specified espeak-ng voice does not exist.")
    marked = re.fullmatch(r'<prosody range="(\d+)">(.*)</prosody>', arguments[-1])
    if not marked or "-m" not in arguments:
        sys.exit("expected SSML")
    movement, text = int(marked.group(1)) / 50, marked.group(2)
    length = round(RATE * len(text) * 9 / int(options["-s"]))
    base = (190 if "+f" in options["-v"] else 100) * 2 ** ((int(options["-p"]) - 50) / 60)
    level = int(options["-a"]) / 400
    noise = random.Random(0)
    samples = array("h")
    phase = 0.0
    for n in range(length):
        position = n / length
        # the pitch falls, and the harmonics of two "words" differ
        phase += base * 2 ** (movement * (0.5 - position) / 3) / RATE
        if "whisper" in options["-v"]:
            value = noise.uniform(-0.5, 0.5)
        else:
            edge = 0.3 if position < 0.5 else 0.7
            value = 2 * (phase % 1) - 1 if phase % 1 < edge else 0.2 * math.sin(2 * math.pi * 7 * phase)
        dip = 0.05 if 0.3 < position < 0.36 else 1.0
        samples.append(round(32767 * level * dip * value))
    samples.extend([0] * round(0.2 * RATE))
    with wave.open(options["-w"], "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        version = os.environ.get("FAKE_ESPEAK_VERSION", "1.0-fake")
        print(f"eSpeak NG text-to-speech: {version}  Data at: nowhere")
    else:
        with open(os.environ["FAKE_ESPEAK_CALLS"], "a", encoding="utf-8") as log:
            log.write(json.dumps(sys.argv[1:]) + "\n")
        speak(sys.argv[1:])
