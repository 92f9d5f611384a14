"""Delivery of alarms: a command or a webhook, each with a time limit. A failure never ends a run. Imports no torch.

The address of a webhook is a secret. The config contains only the name of the environment variable that holds it, and
neither notes nor messages repeat it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_lab.core.console import console
from rlhf_lab.core.files import read_object
from rlhf_lab.core.http_client import ExchangeLimits, build_opener
from rlhf_lab.monitoring.settings import Alerts, samples_are_watched

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run import Run  # imports torch

LONGEST_REASON = 200
"""Maximum number of characters of a failed command's standard error in the note."""


@dataclass(frozen=True)
class Alarm:
    """Alarm of the monitor or of the audit.

    Attributes:
        iteration: iteration, counted from 0; messages count from 1, as reports do.
        iterations: planned number of iterations of the entire run.
        statistics: numbers that describe the alarm.
        action: configured reaction of the monitor or of the audit.
    """

    level: str
    signals: Sequence[str]
    iteration: int
    iterations: int
    statistics: Mapping[str, float]
    action: str
    paused: bool


def problems(config: Config) -> list[str]:
    """Return the reasons why an alert could not be delivered; empty for a stage whose samples are not monitored.

    They are found before training, because an alarm may come only after hours.
    """
    if not samples_are_watched(config):
        return []
    alerts = config.alerts
    lines = []
    if alerts.command and shutil.which(alerts.command[0]) is None:
        lines.append(f"alerts.command: there is no program {alerts.command[0]}; set its path, or alerts.command=[]")
    if alerts.webhook_env and not os.environ.get(alerts.webhook_env):
        lines.append(
            f"alerts.webhook_env={alerts.webhook_env}: the variable {alerts.webhook_env} is not set; export the "
            f"address of the webhook first (export {alerts.webhook_env}=https://…), or remove alerts.webhook_env"
        )
    return lines


def announce(run: Run, alarm: Alarm) -> None:
    """Send an alarm of a run to the recipients in `alerts`, from one process. A failure becomes a note of the run.

    Nothing is sent if `alerts.levels` does not list the level of the alarm.
    """
    settings = run.config.alerts
    from rlhf_lab.core import ranks  # imports torch, which the check of a command does not need

    if alarm.level not in settings.levels or not ranks.is_main():
        return
    manifest = read_object(run.directory / "manifest.json")
    for failure in send(settings, payload(run.directory, manifest, alarm)):
        console.print(f"  alert: {failure}; training continues")
        run.note(f"alarm at iteration {alarm.iteration + 1}: {failure}")


def send(settings: Alerts, payload: Mapping[str, Any]) -> list[str]:
    """Send an alarm to the command and to the webhook of the settings.
    Returns:
        One sentence per failure; empty if all deliveries succeeded.
    """
    text = json.dumps(payload).encode()
    failures = []
    if settings.command and (reason := _run_command(settings.command, text, settings.timeout_s)):
        failures.append(f"alerts.command ({settings.command[0]}) {reason}")
    if settings.webhook_env and (reason := _post(settings.webhook_env, text, settings.timeout_s)):
        failures.append(f"alerts.webhook_env ({settings.webhook_env}) {reason}")
    return failures


def _run_command(command: Sequence[str], text: bytes, timeout_s: float) -> str:
    """Run a command with the payload on its standard input. Returns why it failed, or an empty text."""
    # A file instead of a pipe: a background process of the command would keep a pipe open, and block the wait for it.
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C must reach only the run
            )
        except (OSError, ValueError) as error:
            return f"did not start: {error}"
        try:
            process.communicate(text, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"took more than {timeout_s:g} s (alerts.timeout_s) and was ended"
        except OSError as error:  # the command closed its standard input
            process.wait()
            return f"did not read its standard input: {error}"
        if process.returncode == 0:
            return ""
        errors.seek(0)
        words = errors.read().decode(errors="replace").strip()[-LONGEST_REASON:]
        return f"ended with status {process.returncode}{f': {words}' if words else ''}"


def _post(variable: str, text: bytes, timeout_s: float) -> str:
    """Post the payload to the address in an environment variable. Returns why it failed, without the address."""
    # read when it is needed, so that the address is not stored in the run
    address = os.environ.get(variable, "")
    if not address.startswith(("https://", "http://")):
        return "does not contain an address that starts with https:// or http://"
    try:
        request = urllib.request.Request(address, text, {"Content-Type": "application/json"})
        opener = build_opener(urllib.request.HTTPRedirectHandler(), ExchangeLimits(timeout_s))
        with opener.open(request):
            return ""
    except urllib.error.HTTPError as error:
        return f"was answered with status {error.code}"
    except Exception as error:  # the address is the user's, and no error in it may end training
        reason = getattr(error, "reason", error)
        # The text of an OSError contains no address; that of other errors, such as InvalidURL, may contain it.
        return f"did not answer ({reason if isinstance(reason, OSError) else type(error).__name__})"


def payload(directory: Path, manifest: Mapping[str, Any], alarm: Alarm) -> dict[str, Any]:
    """Return the description of an alarm of a run directory for a command or a webhook. NaN becomes null."""
    return {
        "event": alarm.level,
        "run": directory.name,
        "recipe": manifest.get("recipe"),
        "key": manifest.get("key"),
        "iteration": alarm.iteration + 1,
        "iterations": alarm.iterations,
        "signals": list(alarm.signals),
        "numbers": {name: value if math.isfinite(value) else None for name, value in alarm.statistics.items()},
        "action": alarm.action,
        "paused": alarm.paused,
        "folder": str(directory.resolve()),
        "report": str(directory.resolve() / "report.html"),
        "report_command": f"python -m rlhf_lab report {directory}",
    }
