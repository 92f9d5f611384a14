"""Checks before a run whose samples are monitored: recipients that could not receive an alarm."""

from __future__ import annotations

import os
import shutil

from rlhf_lab.config.root import Config
from rlhf_lab.monitoring.settings import samples_are_watched


def problems(config: Config) -> list[str]:
    """Return the reasons why an alert could not be delivered; empty for a stage whose samples are not monitored."""
    alerts = config.alerts
    if not samples_are_watched(config):
        return []
    lines = []
    # found before training, because an alarm may come only after hours
    if alerts.command and shutil.which(alerts.command[0]) is None:
        lines.append(f"alerts.command: there is no program {alerts.command[0]}; set its path, or alerts.command=[]")
    if alerts.webhook_env and not os.environ.get(alerts.webhook_env):
        lines.append(
            f"alerts.webhook_env={alerts.webhook_env}: the variable {alerts.webhook_env} is not set; export the "
            f"address of the webhook first (export {alerts.webhook_env}=https://…), or remove alerts.webhook_env"
        )
    return lines
