"""An agent and the collector of episodes are one loop: what is trained is what is evaluated."""

from __future__ import annotations

import pytest
from support import once, planned

from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.agents.harness.agent import Assignment
from rlhf_lab.packs.agents.harness.models import open_agents
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.run import Run

TASKS = 6
TURNS = 5


def stage_in(directory):
    """A policy that knows the demonstrations of a few tasks by heart, those with mistakes as well."""
    return planned(
        "sft_tools",
        *("model.hidden=48", "model.layers=2", "model.heads=2", "checkpoint.every_steps=0", f"outputs={directory}"),
        *(f"data.train_tasks={TASKS}", "data.test_tasks=4", "data.kinds={lookup:1,chain_2:2}"),
        *("algorithm.epochs=80", f"algorithm.batch_size={TASKS}", f"data.turns={TURNS}", f"agent.max_turns={TURNS}"),
    )


@pytest.fixture(scope="module")
def run(shared_tmp):
    def train(directory):
        execute(stage_in(directory))

    directory = once(shared_tmp / "knows_tools", train)
    stage = stage_in(directory)
    return Run(directory / "runs" / "agents", stage.config, {"policy": stage.model})


def transcripts_of_episodes(run, tasks):
    model = open_agents(run)["react"].model.completer
    collector = EpisodeCollector(run, model.encoder)
    groups = collector.collect(model.model, tasks, 1, seed=0, temperature=0.0)
    return [(to_messages(episode.prompt), episode.response) for (episode,) in groups]


@pytest.mark.slow
def test_react_with_the_local_model_is_the_collector(run):
    tasks = run.corpus.environment.tasks("train")[:TASKS]
    agent = open_agents(run)["react"]
    assert agent.identity["prompts"] == "brief"
    given = [Assignment(task, tuple(run.corpus.environment.tools(task, 0))) for task in tasks]
    trajectories = agent.run_many(given, lambda *_: None)
    episodes = transcripts_of_episodes(run, tasks)
    for trajectory, (messages, response) in zip(trajectories, episodes, strict=True):
        assert to_messages(trajectory.turns[-1].prompt) == messages
        assert trajectory.turns[-1].text == response
    # it is about something: most of what was learned by heart is solved, in several turns
    answers = [trajectory.answer for trajectory in trajectories]
    demonstrated = [pair.chosen.rpartition("Answer: ")[2] for pair in run.corpus.train]
    assert sum(map(str.__eq__, map(str, answers), demonstrated)) >= TASKS // 2
    assert sum(len(trajectory.calls) for trajectory in trajectories) >= TASKS
