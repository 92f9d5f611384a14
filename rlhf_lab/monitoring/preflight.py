"""What is found before a run whose samples are watched: who could not be told of an alarm."""

from __future__ import annotations

import os
import shutil

from rlhf_lab.config.root import Config


def problems(config: Config) -> list[str]:
    """Why an alert could not be delivered; none for a stage whose samples nobody watches."""
    alerts, algorithm = config.alerts, config.algorithm
    samples_are_watched = algorithm.makes_model and (algorithm.trains_on_reward or algorithm.reads_reward)
    if not samples_are_watched:
        return []
    lines = []
    if alerts.command and shutil.which(alerts.command[0]) is None:
        lines.append(f"alerts.command: there is no program {alerts.command[0]}; write its path, or alerts.command=[]")
    if alerts.webhook_env and not os.environ.get(alerts.webhook_env):
        lines.append(
            f"alerts.webhook_env={alerts.webhook_env}: {alerts.webhook_env} is not set; export the address of the "
            f"webhook first (export {alerts.webhook_env}=https://…), or leave alerts.webhook_env out"
        )
    return lines
