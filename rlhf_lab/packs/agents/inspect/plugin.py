"""Entry point `inspect_ai` of the package: importing it registers `rlhf_lab` as a model and as a sandbox."""

from rlhf_lab.packs.agents.inspect.provider import LabModel
from rlhf_lab.packs.agents.inspect.sandbox import LabSandbox

__all__ = ["LabModel", "LabSandbox"]
