"""Environments of OpenEnv: one server per environment, one connection per episode.

The policy's response is sent as one field of the action. One field of the observation is returned to the policy. No
code of the environment runs in this process. Not supported: actions of several fields, images, servers that are started
by the client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rlhf_lab.core.episodes import Step, Task
from rlhf_lab.core.errors import LabError, MissingDependency
from rlhf_lab.core.messages import Message


class OpenEnvSession:
    """One episode, with its own connection to the server.

    Args:
        action: name of the action field that holds the response.
        observation: name of the observation field that holds the text for the policy.
    """

    def __init__(self, client: Any, options: Mapping[str, Any], action: str, observation: str):
        self.client = client
        self.options = options
        self.action = action
        self.observation = observation

    def start(self) -> str:
        return self._text(self.client.reset(**self.options))

    def step(self, response: str, *, is_last: bool) -> Step:
        result = self.client.step({self.action: response})
        done = bool(result.done) or is_last
        if done:
            self.close()
        message: Message = {"role": "user", "content": self._text(result)}
        return Step([] if done else [message], float(result.reward or 0.0), done)

    def finish(self) -> float:
        """Close the connection and return 0: a server rewards each turn when it happens, so nothing is left to add."""
        self.close()
        return 0.0

    def close(self) -> None:
        self.client.close()

    def _text(self, result: Any) -> str:
        observation = result.observation
        if self.observation not in observation:
            known = ", ".join(observation) or "nothing"
            raise LabError(
                f"data.observation={self.observation} is no field of the observations of this OpenEnv server; set it "
                f"to one of the fields it has: {known}"
            )
        value = observation[self.observation]
        # a policy reads text, so structured observations become JSON
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def opener(
    url: str, arguments: Mapping[str, Any], action: str, observation: str
) -> Callable[[Task, int], OpenEnvSession]:
    """Return a function that opens a session of a task. The server is seeded with the column `seed` of the task."""
    try:
        # openenv is optional, so it is imported only when such an environment is opened
        from openenv.core.generic_client import GenericEnvClient
    except ImportError:
        raise MissingDependency("data.style=openenv", "openenv-core") from None

    def open_session(task: Task, seed: int) -> OpenEnvSession:
        del seed  # the episode's seed is unused, so that every episode of a task starts in the same situation
        # the client is asynchronous; `sync` wraps it for the blocking calls of an episode
        client = GenericEnvClient(base_url=url, **arguments).sync()
        client.connect()
        options = {"seed": task.metadata["seed"]} if "seed" in task.metadata else {}
        return OpenEnvSession(client, options, action, observation)

    return open_session
