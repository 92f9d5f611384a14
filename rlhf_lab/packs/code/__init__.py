"""Code: programs that a model wrote, the sandbox that runs them, rewards of code, the world of repairs.

Begin with sandbox/sandbox.py and rewards/code_tests.py.
"""

from rlhf_lab.core.packs import Pack

PACK = Pack(
    name="code",
    package="rlhf_lab.packs.code",
    commands={"sandbox": "rlhf_lab.packs.code.commands:sandbox_command"},
    preflight=("rlhf_lab.packs.code.sandbox.preflight:problems",),
    doctor=("rlhf_lab.packs.code.sandbox.doctor:CHECK",),
)
