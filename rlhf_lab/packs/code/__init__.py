"""Code pack: runs and grades programs that a model wrote.

sandbox/ isolates programs and runs hidden tests. rewards/ contains unit tests and static quality as reward terms.
mbpp/ reads MBPP. repairs/ is an offline world of programs with planted bugs that a small model can repair. debugging/
contains hand-written debugging tasks. commands.py defines the sub-command `sandbox`.

Start with sandbox/sandbox.py, then rewards/code_tests.py. Imports no other pack.
"""

from rlhf_lab.core.packs import Pack

PACK = Pack(
    name="code",
    package="rlhf_lab.packs.code",
    commands={"sandbox": "rlhf_lab.packs.code.commands:sandbox_command"},
    preflight=("rlhf_lab.packs.code.sandbox.checks:problems",),
    doctor=("rlhf_lab.packs.code.sandbox.checks:CHECK",),
)
