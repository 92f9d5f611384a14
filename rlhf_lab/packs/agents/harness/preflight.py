"""Checks before a run of agents: report agents of the user that cannot run, and services that do not answer."""

from __future__ import annotations

from pathlib import Path

from rlhf_lab.config.root import Config
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.user_code import files_behind
from rlhf_lab.packs.agents.harness.python import load_agent
from rlhf_lab.packs.agents.harness.settings import PythonAgent, runs_agents
from rlhf_lab.packs.judging.judges.preflight import judge_problems


def problems(config: Config) -> list[str]:
    """Return why the agents of a stage cannot run on this machine; empty for a stage without agents."""
    if not runs_agents(config):
        return []
    lines = []
    for program in _own_programs(config):
        try:
            load_agent(program)
        except ConfigError as error:
            lines += error.problems
    if config.agent.asks_service:
        # The judges' check names the settings of a judge, which here are those of `agent.service`.
        lines += [line.replace("judge.", "agent.service.") for line in judge_problems(config.agent.service)]
    return lines


def code_files(config: Config) -> list[Path]:
    """Return the source files of the user's own agents that the stage runs."""
    return [file for program in _own_programs(config) for file in files_behind(program.path)]


def _own_programs(config: Config) -> list[PythonAgent]:
    # Only these agents consist of files of the user.
    programs = config.agent.programs.values() if runs_agents(config) else ()
    return [program for program in programs if isinstance(program, PythonAgent)]
