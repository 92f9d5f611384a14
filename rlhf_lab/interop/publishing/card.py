"""The model card (README.md): front matter that the hub reads, then what the model is, was made of, and is not.

Everything in it comes from the run's manifest.json, config.yaml and result.json. Of texts that the run wrote, paths of
this machine are shortened to their last part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlhf_lab.core.files import read_json
from rlhf_lab.core.metrics import catalogue
from rlhf_lab.core.metrics import metric as metric_of
from rlhf_lab.gates.gate import Decision
from rlhf_lab.interop.publishing.leaks import without_local_paths
from rlhf_lab.interop.publishing.provenance import Provenance
from rlhf_lab.interop.publishing.refusals import DESPITE
from rlhf_lab.models.families import family_of
from rlhf_lab.results.rundir import Policy
from rlhf_lab.results.severity import monitor_state
from rlhf_lab.results.wording import judged_title
from rlhf_lab.statistics.estimates import Estimate

MOST_POLICIES = 5
"""Columns of the table of policies: the first one and the last four."""


@dataclass(frozen=True)
class View:
    """What a card is written from.

    Attributes:
        name: under which the model is published: a folder's name or `owner/name`.
        base: hub id of the base, where it was given with the command.
        despite: reasons against publishing that were agreed to.
        gated: what a suite said of the run; None where none was asked.
        distance: largest difference from the saved model on one row.
    """

    made: Provenance
    name: str
    adapter: bool
    dtype: str
    base: str
    license: str
    despite: Sequence[str]
    gated: Decision | None
    distance: float

    @property
    def base_id(self) -> str:
        return self.base or self.made.base.hub_id


def render(view: View, folder: Path) -> str:
    """The text of README.md.

    Args:
        folder: with the published files, whose config.json says how they are loaded.
    """
    sections = (
        _opening(view),
        _loading(view, folder),
        _origin(view),
        _training(view),
        _evaluation(view),
        _limits(view),
        _reproduction(view),
    )
    matter = yaml.safe_dump(front_matter(view, folder), sort_keys=False, allow_unicode=True)
    return f"---\n{matter}---\n\n" + "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def front_matter(view: View, folder: Path) -> dict[str, Any]:
    """What the hub reads: https://huggingface.co/docs/hub/model-cards."""
    made = view.made
    is_reward_model = _is_reward_model(made.model_folder)
    task = "text-classification" if is_reward_model else "text-generation"
    tags = ["rlhf_lab", made.algorithm, *(["reward-model"] if is_reward_model else [])]
    matter: dict[str, Any] = {"library_name": "peft" if view.adapter else "transformers", "pipeline_tag": task}
    if view.license:
        matter["license"] = view.license
    if view.base_id:
        matter["base_model"] = view.base_id
        matter["base_model_relation"] = "adapter" if view.adapter else "finetune"
    matter["tags"] = [*tags, *(["smoke-run"] if "smoke" in view.despite else [])]
    if made.hub_data_sets:
        matter["datasets"] = made.hub_data_sets
    metrics = list(_index_metrics(view))
    if metrics:
        data = {"name": f"{made.data_name}, held-out prompts", "type": (made.hub_data_sets or [made.data_name])[0]}
        results = [{"task": {"type": task}, "dataset": data, "metrics": metrics}]
        matter["model-index"] = [{"name": view.name, "results": results}]
    return matter


def _index_metrics(view: View) -> Iterator[dict[str, Any]]:
    """The numbers of the published model, each with its interval in its name: the hub has no place for one."""
    run = view.made.run
    estimates = {**_stage_estimates(view), **(run.policies[-1].metrics if run.policies else {})}
    for name in _shown(estimates):
        estimate = estimates[name]
        if math.isfinite(estimate.mean):
            title = judged_title(name, run.has_gold)
            interval = f" (95 % interval {_interval(estimate)})" if estimate.bounded else ""
            yield {"type": name, "name": f"{title}{interval}", "value": round(estimate.mean, 4), "verified": False}


def _shown(estimates: dict[str, Estimate]) -> list[str]:
    """Names of the metrics that tables have, in the order of the registry."""
    shown = [metric.name for metric in catalogue().values() if metric.column and metric.name in estimates]
    return [*shown, *(name for name in estimates if name not in shown and _is_primary(name, estimates))]


def _is_primary(name: str, estimates: dict[str, Estimate]) -> bool:
    """Whether a metric that is no column is told all the same: an estimate with an interval, and not of a part."""
    return estimates[name].bounded and "/" not in name and not metric_of(name).column


def _stage_estimates(view: View) -> dict[str, Estimate]:
    """What the stage itself measured with an interval, such as the accuracy of a reward model on held-out pairs."""
    return {name: value for name, value in view.made.run.results.items() if value.n and value.bounded}


def _opening(view: View) -> list[str]:
    made = view.made
    kind = "A reward model" if _is_reward_model(made.model_folder) else "A language model"
    form = f"An adapter (LoRA) of {view.base_id or 'its base'}" if view.adapter else kind
    lines = [f"# {view.name.rpartition('/')[2]}", ""]
    if view.despite:
        reasons = "; ".join(DESPITE[name] for name in view.despite)
        lines += [f"> **Published although** {reasons}.", ""]
    question = made.run.manifest.get("question")
    lines.append(
        f"{form}, trained with `{made.algorithm}` in rlhf_lab, a laboratory for reward signals (recipe "
        f"`{made.run.recipe}`, key `{made.run.manifest.get('key')}`). See [limits](#limits) before it is used."
    )
    if question:
        lines.append(f"The run asked: {without_local_paths(str(question))}")
    return lines


def _loading(view: View, folder: Path) -> list[str]:
    lines = ["## Load it", "", "```python"]
    if view.adapter:
        auto = (
            "AutoModelForSequenceClassification" if _is_reward_model(view.made.model_folder) else "AutoModelForCausalLM"
        )
        lines += [
            "from peft import PeftModel",
            f"from transformers import {auto}, AutoTokenizer",
            "",
            f'base = {auto}.from_pretrained("{_adapter_base(folder)}")',
            f'model = PeftModel.from_pretrained(base, "{view.name}")',
        ]
    else:
        auto = "AutoModelForSequenceClassification" if _is_reward_model(folder) else "AutoModelForCausalLM"
        lines.append(f"from transformers import {auto}, AutoTokenizer")
        if family := family_of(_model_type(folder)):
            lines.append(f"import {family.module}  # the architecture is the lab's")
        lines += ["", f'model = {auto}.from_pretrained("{view.name}")']
    lines += [f'tokenizer = AutoTokenizer.from_pretrained("{view.name}")', "```", ""]
    lines.append(_prompt_form(folder))
    if view.dtype == "bfloat16":
        lines.append(
            f"The weights are rounded to bfloat16. On one row of tokens that moves a number by {view.distance:.2g} at "
            "most; the table below was measured before rounding."
        )
    return lines


def _prompt_form(folder: Path) -> str:
    settings = read_json(folder / "tokenizer_config.json") or {}
    if "chat_template" in settings or any(folder.glob("chat_template*")):
        return "Prompts are written by the tokenizer's chat template."
    return 'Prompts are transcripts: `"\\n\\nHuman: …\\n\\nAssistant:"`, and a reply follows after a space.'


def _origin(view: View) -> list[str]:
    made = view.made
    base = f"[{view.base}](https://huggingface.co/{view.base})" if view.base else made.base.words
    lines = ["## Made of", "", f"- Base model: {base}"]
    stages = list(made.stages())
    for number, (recipe, algorithm, key) in enumerate(stages, start=1):
        lines.append(f"- Stage {number} of {len(stages)}: recipe `{recipe}`, algorithm `{algorithm}`, key `{key}`")
    sources = f" from {', '.join(f'`{source}`' for source in made.data_sources)}" if made.data_sources else ""
    lines.append(f"- Data: `{made.data_name}`{sources}, fingerprint `{made.fingerprint}`")
    for split, report in ((made.run.manifest.get("data") or {}).get("report") or {}).items():
        lines.append(f"  - {split}: {report.get('rows')} rows read, {report.get('kept')} kept")
    if terms := made.reward_terms:
        lines.append("- Rewards it was trained on. They are proxies: what they score is not what is wanted of a reply")
        lines += [f"  - {term}" for term in terms]
    else:
        lines.append("- Rewards: none was maximised")
    if _is_reward_model(made.model_folder):
        lines.append(
            "- Its score is a proxy: it was fitted to the preferences or labels of these data, and can be gamed"
        )
    return lines


def _training(view: View) -> list[str]:
    made = view.made
    lines = ["## Training", "", "| setting | value |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(value)} |" for name, value in made.main_settings().items()]
    seconds = made.run.seconds
    if seconds is not None:
        lines += ["", f"This stage took {seconds:.0f} s; those before it are not counted."]
    return lines


def _evaluation(view: View) -> list[str]:
    run = view.made.run
    lines = ["## Evaluation", ""]
    policies = run.policies
    if len(policies) > MOST_POLICIES:
        policies = (policies[0], *policies[1 - MOST_POLICIES :])
    if policies:
        lines += _policy_table(view, policies)
    stage = _stage_estimates(view)
    shown = _shown(stage)
    if shown:
        lines += ["| metric | mean [95 % interval] | n |", "|---|---|---:|"]
        for name in shown:
            lines.append(f"| {judged_title(name, run.has_gold)} | {_number(stage[name])} | {stage[name].n} |")
        lines.append("")
    if len(lines) == 2:
        return [*lines, "The run measured nothing on held-out data."]
    return [*lines, "Means with 95 % intervals, clustered by prompt: of other prompts, not of other training runs."]


def _policy_table(view: View, policies: Sequence[Policy]) -> list[str]:
    has_gold = view.made.run.has_gold
    measured = {name: value for policy in policies for name, value in policy.metrics.items()}
    lines = [
        f"| metric | {' | '.join(policy.name for policy in policies)} |",
        f"|---|{'---|' * len(policies)}",
    ]
    for name in _shown(measured):
        cells = [_number(policy.metrics.get(name)) for policy in policies]
        lines.append(f"| {judged_title(name, has_gold)} | {' | '.join(cells)} |")
    counts = next((policy.metrics["kl"] for policy in policies if "kl" in policy.metrics), None)
    size = f" {counts.n} replies to {counts.clusters} held-out prompts each." if counts else ""
    return [*lines, "", f"The last column is the published model, the first what it started from.{size}", ""]


def _limits(view: View) -> list[str]:
    made, run = view.made, view.made.run
    lines = ["## Limits", ""]
    if run.has_gold:
        lines.append(f"- Gold is {without_local_paths(run.gold_source)}.")
    elif run.policies and not run.has_verified_answers:
        lines.append(
            "- No gold: whether replies are better by anything else than the training reward was not measured."
        )
    lines.append("- What is not in the tables above was not measured: safety, other tasks, other languages.")
    lines.append(f"- One training run, of seed {made.settings.get('seed')}: another seed may come out otherwise.")
    lines.append(f"- {_monitor_words(view)}")
    lines.append(f"- {_gate_words(view.gated)}")
    lines += [f"- The run notes: {without_local_paths(note)}" for note in run.notes]
    if not view.license:
        lines.append("- No licence was named; those of the base model and of the data hold.")
    return lines


def _monitor_words(view: View) -> str:
    state = monitor_state(view.made.run, None)
    if state is None:
        return "Reward hacking was not watched for in this stage."
    return f"Monitor of reward hacking: {state[1]}."


def _gate_words(decision: Decision | None) -> str:
    if decision is None:
        return "No gate was asked when it was published."
    verdicts = [verdict for verdict in decision.verdicts if verdict.failed or verdict.state == "undecided"]
    told = "; ".join(f"{verdict.check.name} {verdict.state} ({verdict.words})" for verdict in verdicts)
    outcome = "passed" if decision.passed else "failed"
    return without_local_paths(f"Gate `{decision.suite.suite}`: {outcome}{f': {told}' if told else ''}.")


def _reproduction(view: View) -> list[str]:
    made = view.made
    versions = made.run.manifest.get("versions") or {}
    libraries = ", ".join(f"{name} {value}" for name, value in versions.items() if name != "rlhf_lab" and value)
    command = ["```", made.command, "```"] if made.command else ["It was started from Python, which leaves no command."]
    return [
        "## How it was made",
        "",
        *command,
        "",
        f"rlhf_lab {made.code}; {libraries}. Begun {made.run.manifest.get('created')}.",
    ]


def _number(estimate: Estimate | None) -> str:
    """`0.722 [0.703, 0.741]`; a bare number where nothing is known of its uncertainty."""
    if estimate is None or not math.isfinite(estimate.mean):
        return "–"
    return f"{estimate.mean:.3f} [{_interval(estimate)}]" if estimate.bounded else f"{estimate.mean:.3f}"


def _interval(estimate: Estimate) -> str:
    return f"{estimate.low:.3f}, {estimate.high:.3f}"


def _cell(value: Any) -> str:
    """A setting's value in a cell of a Markdown table."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _is_reward_model(folder: Path) -> bool:
    config = read_json(folder / "config.json") or {}
    return any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or [])


def _model_type(folder: Path) -> str:
    return str((read_json(folder / "config.json") or {}).get("model_type"))


def _adapter_base(folder: Path) -> str:
    return str((read_json(folder / "adapter_config.json") or {}).get("base_model_name_or_path"))
