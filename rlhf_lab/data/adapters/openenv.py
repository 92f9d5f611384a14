"""Environments of OpenEnv: a server per environment, a connection per episode.

The policy's reply is one field of the action, and one field of the observation is what it reads. No code of the
environment runs here. Left out: actions of several fields, images, servers that are started by the client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rlhf_lab.core.episodes import Step, Task
from rlhf_lab.core.errors import LabError, MissingDependency
from rlhf_lab.core.messages import Message


class OpenEnvSession:
    """One episode over a connection of its own.

    Args:
        client: of `openenv`, synchronous: reset, step and close.
        options: what `reset` is called with, such as a seed.
        action, observation: names of the fields that hold the reply, and the text that answers it.
    """

    def __init__(self, client: Any, options: Mapping[str, Any], action: str, observation: str):
        self.client, self.options, self.action, self.observation = client, options, action, observation

    def start(self) -> str:
        return self._text(self.client.reset(**self.options))

    def step(self, reply: str, *, is_last: bool) -> Step:
        result = self.client.step({self.action: reply})
        done = bool(result.done) or is_last
        if done:
            self.close()
        message: Message = {"role": "user", "content": self._text(result)}
        return Step([] if done else [message], float(result.reward or 0.0), done)

    def finish(self) -> float:
        """Nothing: a server rewards each turn when it is made."""
        self.close()
        return 0.0

    def close(self) -> None:
        self.client.close()

    def _text(self, result: Any) -> str:
        observation = result.observation
        if self.observation not in observation:
            known = ", ".join(observation) or "nothing"
            raise LabError(
                f"data.observation={self.observation} is no field of what the OpenEnv server observes; it has {known}"
            )
        value = observation[self.observation]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def opener(
    url: str, arguments: Mapping[str, Any], action: str, observation: str
) -> Callable[[Task, int], OpenEnvSession]:
    """What makes a session of a task. A task's fact `seed` is the server's seed, so that a task is one situation."""
    try:
        from openenv.core.generic_client import GenericEnvClient
    except ImportError:
        raise MissingDependency("data.style=openenv", "openenv-core") from None

    def open_session(task: Task, seed: int) -> OpenEnvSession:
        del seed  # of the episode: the task's own situation decides
        client = GenericEnvClient(base_url=url, **arguments).sync()
        client.connect()
        options = {"seed": task.facts["seed"]} if "seed" in task.facts else {}
        return OpenEnvSession(client, options, action, observation)

    return open_session
