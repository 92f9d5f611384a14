"""Agents: programs that ask a model and call tools, their worlds, benchmarks and reports.

Begin with harness/program.py and benchmarks/agent_bench.py.
"""

from rlhf_lab.core.packs import Group, Pack

PACK = Pack(
    name="agents",
    package="rlhf_lab.packs.agents",
    groups=(Group("agent", "who attempts tasks with tools, and the model behind it.", default="react"),),
    commands={"export": "rlhf_lab.packs.agents.commands:export_command"},
    answers={
        "agents": "rlhf_lab.packs.agents.answers:agents",
        "attempts_paired": "rlhf_lab.packs.agents.answers:attempts_paired",
    },
    run_sections=("rlhf_lab.packs.agents.report.attempts:attempts after gains",),
    preflight=("rlhf_lab.packs.agents.harness.preflight:problems",),
    code_files=("rlhf_lab.packs.agents.harness.preflight:code_files",),
)
