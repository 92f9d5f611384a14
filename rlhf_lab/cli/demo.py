"""`demo`: a small complete example for the first minute after the installation."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.cli.recipe_command import RecipeCommand
from rlhf_lab.core import invocation
from rlhf_lab.core.console import console

PAIRS = 2400
"""Number of training pairs: 15 % of those of the recipe, so that the run takes about a minute."""
SIZE = (f"data.train_pairs={PAIRS}", "data.test_pairs=300", "evaluation.prompts=150", "evaluation.samples_per_prompt=2")
INTRODUCTION = f"""\
A complete example in a simulated world whose true reward is known. It takes about a minute on 2 idle cores and
downloads nothing. A language model of 0.2 million parameters is trained from nothing:
  sft           it imitates the preferred responses of {PAIRS} pairs
  reward_model  another model learns from the same pairs which response an annotator prefers
  dpo           the first model learns from the pairs; then both policies answer the same held-out prompts
"""


def demo_command(arguments: Sequence[str]) -> RecipeCommand:
    """`demo [override …]`: run a small complete example in about a minute; nothing is downloaded.

    It trains an SFT policy, a reward model and DPO in a simulated world, and prints a table, the path of the report,
    and what to try next. It is +recipe=dpo with fewer data; overrides such as algorithm.beta=0.05 change it.
    """
    words = ["+recipe=dpo", *SIZE, *arguments]
    if any(word.startswith("-") for word in arguments):  # a flag such as --cfg prints something else
        return RecipeCommand(words)
    console.inform(INTRODUCTION, soft_wrap=False)
    return RecipeCommand(words, _closing())


def _closing() -> str:
    """Return how to read the table, and what to try next."""
    program = " ".join(invocation.program())
    return f"""
How to read the table: proxy is the learned reward; gold is the true reward, which training never sees. If proxy rises
and gold does not, the policy exploits the errors of the labels. KL is the distance from the SFT policy. The report has
the responses of both policies side by side; open it in a browser.

Next:
  {program} demo algorithm.beta=0.05         change a setting; stored stages are reused
  {program} explain algorithm=dpo            all settings of an algorithm
  {program} +recipe=dpo_iterative            seven times the data and three rounds more, three minutes
  {program} +recipe=dpo algorithm.beta=0.1,0.3 seed=0,1    a study: settings × seeds, one table
  {program} list                             all recipes and commands
  {program} doctor                           check the installation"""
