"""Tells people of an alarm: runs a command or posts to a webhook, each with a time limit, and never ends a run.

The address of a webhook is a secret: the config names the environment variable that holds it, and neither notes nor
messages repeat it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.monitoring.settings import Alerts

LONGEST_REASON = 200
"""Characters of what a failed command wrote to standard error that are noted."""


def send(settings: Alerts, payload: Mapping[str, Any]) -> list[str]:
    """Give an alarm to the command and to the webhook that the settings name.

    Args:
        payload: what the alarm is; values that JSON has.
    Returns:
        What failed, a sentence each; empty where everybody was told.
    """
    text = json.dumps(payload).encode()
    failures = []
    if settings.command and (reason := _run_command(settings.command, text, settings.timeout_s)):
        failures.append(f"alerts.command ({settings.command[0]}) {reason}")
    if settings.webhook_env and (reason := _post(settings.webhook_env, text, settings.timeout_s)):
        failures.append(f"alerts.webhook_env ({settings.webhook_env}) {reason}")
    return failures


def _run_command(command: Sequence[str], text: bytes, timeout_s: float) -> str:
    """Run a command with the payload on its standard input. Returns why it failed; empty where it did not."""
    # A file, not a pipe: a process that the command leaves behind would keep a pipe open, and be waited for.
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is meant for the run
            )
        except (OSError, ValueError) as error:
            return f"did not start: {error}"
        try:
            process.communicate(text, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"took more than {timeout_s:g} s (alerts.timeout_s) and was ended"
        except OSError as error:  # it closed its standard input
            process.wait()
            return f"did not read what it was given: {error}"
        if process.returncode == 0:
            return ""
        errors.seek(0)
        words = errors.read().decode(errors="replace").strip()[-LONGEST_REASON:]
        return f"ended with status {process.returncode}{f': {words}' if words else ''}"


def _post(variable: str, text: bytes, timeout_s: float) -> str:
    """Post the payload to the address in an environment variable. Returns why it failed, without the address."""
    address = os.environ.get(variable, "")
    if not address.startswith(("https://", "http://")):
        return "holds no address that begins with https:// or http://"
    try:
        request = urllib.request.Request(address, text, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout_s):
            return ""
    except urllib.error.HTTPError as error:
        return f"was answered with status {error.code}"
    except Exception as error:  # the address is the user's: whatever is wrong with it must not end training
        reason = getattr(error, "reason", None)
        # words of these errors have no address in them; those of others, such as InvalidURL, may
        return f"did not answer ({reason if isinstance(reason, OSError) else type(error).__name__})"


def payload(
    folder: Path,
    manifest: Mapping[str, Any],
    *,
    level: str,
    signals: Sequence[str],
    iteration: int,
    iterations: int,
    statistics: Mapping[str, float],
    action: str,
    paused: bool,
) -> dict[str, Any]:
    """What a command or a webhook is told of an alarm.

    Args:
        manifest: of the run.
        signals: rules in alarm.
        iteration: from 0; told from 1, as reports do.
        iterations: of the whole run, as planned.
    """
    return {
        "event": level,
        "run": folder.name,
        "recipe": manifest.get("recipe"),
        "key": manifest.get("key"),
        "iteration": iteration + 1,
        "iterations": iterations,
        "signals": list(signals),
        "numbers": {name: value if math.isfinite(value) else None for name, value in statistics.items()},
        "action": action,
        "paused": paused,
        "folder": str(folder.resolve()),
        "report": str(folder.resolve() / "report.html"),
        "report_command": f"python -m rlhf_lab report {folder}",
    }
