"""Agents: programs that use a model and call tools, with their worlds, benchmarks and training data.

harness/ has the agents and the driver that advances their attempts. tools/ is the offline world of tools, gaia/ the
questions, tools and scorers of GAIA. benchmarks/ has the stages that measure agents, synthesis/ the stages that turn
attempts into training data, rewards/ the reward of tool calls. report/ is the page of attempts, inspect/ the bridge to
inspect-ai. trajectory.py is the record of one attempt. answers.py writes the conclusions of runs, commands.py has the
sub-commands.

Start with harness/program.py, then read benchmarks/agent_bench.py. This package imports the packs code and judging.
"""

from rlhf_lab.core.packs import ConfigGroup, Pack

PACK = Pack(
    name="agents",
    package="rlhf_lab.packs.agents",
    groups=(ConfigGroup("agent", "agents that attempt tasks with tools, and their model.", default="react"),),
    commands={"export": "rlhf_lab.packs.agents.commands:export_command"},
    answers={
        "agents": "rlhf_lab.packs.agents.answers:agents",
        "attempts_paired": "rlhf_lab.packs.agents.answers:attempts_paired",
    },
    run_sections=("rlhf_lab.packs.agents.report.attempts:attempts after gains",),
    preflight=("rlhf_lab.packs.agents.harness.preflight:problems",),
    code_files=("rlhf_lab.packs.agents.harness.preflight:code_files",),
)
