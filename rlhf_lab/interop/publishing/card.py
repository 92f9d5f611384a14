"""Model card (README.md): front matter for the hub, then a description of the model, its origin and its limits.

All content comes from the run's manifest.json, config.yaml and result.json. In texts that the run wrote, paths of this
machine are shortened to their last component.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from rlhf_lab.core.files import read_object
from rlhf_lab.core.metrics import catalogue
from rlhf_lab.core.metrics import metric as metric_of
from rlhf_lab.gates.gate import Decision
from rlhf_lab.interop.publishing.leaks import without_local_paths
from rlhf_lab.interop.publishing.model_files import is_reward_model
from rlhf_lab.interop.publishing.provenance import PublishedModel, PublishRequest
from rlhf_lab.interop.publishing.refusals import DESPITE
from rlhf_lab.models.families import family_of
from rlhf_lab.models.model_files import ADAPTER
from rlhf_lab.results.rundir import EvaluatedPolicy
from rlhf_lab.results.severity import monitor_state
from rlhf_lab.results.wording import judged_title, usual_size, with_own_size
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.training.settings import SOUP

MOST_POLICIES = 5
"""Maximum number of columns in the table of policies: the reference, the starting point of training, and the last
policies."""


@dataclass(frozen=True)
class View:
    """Data for a card.

    Attributes:
        provenance: the run and the runs before it.
        despite: reasons against publishing that the user accepted.
        gated: decision of a suite about the run; None if no suite was named.
        distance: maximum difference from the saved model on one row of tokens.
    """

    request: PublishRequest
    provenance: PublishedModel
    despite: Sequence[str]
    gated: Decision | None
    distance: float = 0.0

    @property
    def base_id(self) -> str:
        return self.request.base or self.provenance.base.hub_id


def render(view: View, directory: Path) -> str:
    """Return the text of README.md.

    Args:
        view: data for the card.
        directory: directory of the published files, whose config.json determines how they are loaded.
    """
    sections = (
        _opening(view),
        _loading(view, directory),
        _origin(view),
        _training(view),
        _evaluation(view),
        _limits(view),
        _reproduction(view),
    )
    text = "\n\n".join("\n".join(lines) for lines in sections)
    return f"---\n{card_data(view).to_yaml()}\n---\n\n{text}\n"


def card_data(view: View) -> ModelCardData:
    """Return the metadata for the hub, which become the front matter.

    The hub lists results by data set; a local data set is listed by its name.
    """
    provenance = view.provenance
    scores = is_reward_model(provenance.model_dir)
    task = "text-classification" if scores else "text-generation"
    tags = ["rlhf_lab", provenance.algorithm]
    if scores:
        tags.append("reward-model")
    if "smoke" in view.despite:
        tags.append("smoke-run")
    results = list(_eval_results(view, task))
    relation: dict[str, Any] = (
        {"base_model_relation": "adapter" if view.request.adapter else "finetune"} if view.base_id else {}
    )
    return ModelCardData(
        library_name="peft" if view.request.adapter else "transformers",
        pipeline_tag=task,
        license=view.request.license or None,
        base_model=view.base_id or None,
        tags=tags,
        datasets=provenance.hub_data_sets or None,
        model_name=view.request.name if results else None,  # the hub shows it with the results only
        eval_results=results or None,
        **relation,
    )


def _eval_results(view: View, task: str) -> Iterator[EvalResult]:
    """Yield the metrics of the published model. The interval is part of the name, as the hub has no field for it."""
    provenance = view.provenance
    source = (provenance.hub_data_sets or [provenance.data_name])[0]
    run = view.provenance.run
    # The last policy is the published model. Its metrics override those of the stage.
    estimates = _stage_estimates(view)
    if run.policies:
        estimates = {**estimates, **run.policies[-1].metrics}
    for name in _shown(estimates):
        estimate = estimates[name]
        if math.isfinite(estimate.mean):
            title = judged_title(name, run.has_gold)
            interval = f" (95 % interval {_interval(estimate)})" if estimate.bounded else ""
            yield EvalResult(
                task_type=task,
                dataset_type=source,
                dataset_name=f"{provenance.data_name}, held-out prompts",
                metric_type=name,
                metric_name=f"{title}{interval}",
                metric_value=round(estimate.mean, 4),
                verified=False,  # the hub reserves true for results that it reproduced itself
            )


def _shown(estimates: dict[str, Estimate]) -> list[str]:
    """Return the names of the metrics for tables, in the order of the registry."""
    columns = [metric.name for metric in catalogue().values() if metric.column]
    shown = [name for name in columns if name in estimates]
    # metrics that tables omit, but with an interval and over all data
    others = [name for name in estimates if estimates[name].bounded and "/" not in name and not metric_of(name).column]
    return [*shown, *others]


def _stage_estimates(view: View) -> dict[str, Estimate]:
    """Return the stage's own metrics with an interval, such as the accuracy of a reward model on held-out pairs."""
    results = view.provenance.run.results
    return {name: value for name, value in results.items() if value.n and value.bounded}


def _opening(view: View) -> list[str]:
    provenance = view.provenance
    kind = "A reward model" if is_reward_model(provenance.model_dir) else "A language model"
    form = f"A LoRA adapter of {view.base_id or 'its base'}" if view.request.adapter else kind
    lines = [f"# {view.request.name.rpartition('/')[2]}", ""]
    if view.despite:
        reasons = "; ".join(DESPITE[name] for name in view.despite)
        lines += [f"> **Published although** {reasons}.", ""]
    manifest = provenance.run.manifest
    lines.append(
        f"{form}, trained with `{provenance.algorithm}` in rlhf_lab, a laboratory for reward signals "
        f"(recipe `{provenance.run.recipe}`, "
        f"key `{manifest.get('key')}`). See [limits](#limits) before it is used."
    )
    question = manifest.get("question")
    if question:
        lines.append(f"Question of the run: {without_local_paths(str(question))}")
    return lines


def _loading(view: View, directory: Path) -> list[str]:
    lines = ["## Load it", "", "```python"]
    # an adapter is published without a config.json, so the full model's config is read
    full_model = view.provenance.model_dir if view.request.adapter else directory
    auto = "AutoModelForSequenceClassification" if is_reward_model(full_model) else "AutoModelForCausalLM"
    if view.request.adapter:
        lines.append("from peft import PeftModel")
    lines.append(f"from transformers import {auto}, AutoTokenizer")
    if family_of(str(read_object(full_model / "config.json").get("model_type"))):
        # A published card cannot be corrected later, so it must not name a module of a pack, which may be moved.
        lines += [
            "from rlhf_lab.models import families",
            "",
            "families.register()  # the architecture is part of rlhf_lab, not of transformers",
        ]
    lines.append("")
    if view.request.adapter:
        adapter_base = read_object(directory / ADAPTER).get("base_model_name_or_path")
        lines += [
            f'base = {auto}.from_pretrained("{adapter_base}")',
            f'model = PeftModel.from_pretrained(base, "{view.request.name}")',
        ]
    else:
        lines.append(f'model = {auto}.from_pretrained("{view.request.name}")')
    lines += [f'tokenizer = AutoTokenizer.from_pretrained("{view.request.name}")', "```", ""]
    lines.append(_prompt_form(directory))
    if view.request.dtype == "bfloat16":
        lines.append(
            "The weights are rounded to bfloat16. On one row of tokens this changes the output by up to "
            f"{view.distance:.2g}; the table below was measured before rounding."
        )
    return lines


def _prompt_form(directory: Path) -> str:
    settings = read_object(directory / "tokenizer_config.json")
    if "chat_template" in settings or any(directory.glob("chat_template*")):
        return "Prompts use the tokenizer's chat template."
    return 'Prompts are transcripts: `"\\n\\nHuman: …\\n\\nAssistant:"`. The response follows after a space.'


def _origin(view: View) -> list[str]:
    provenance = view.provenance
    base = provenance.base.words
    if view.request.base:
        base = f"[{view.request.base}](https://huggingface.co/{view.request.base})"
    lines = ["## Origin", "", f"- Base model: {base}"]
    stages = list(provenance.stages())
    for number, (recipe, algorithm, key) in enumerate(stages, start=1):
        stage = f"Stage {number} of {len(stages)}"
        lines.append(f"- {stage}: recipe `{recipe}`, algorithm `{algorithm}`, key `{key}`")
    sources = ", ".join(f"`{source}`" for source in provenance.data_sources)
    origin = f" from {sources}" if sources else ""
    lines.append(f"- Data: `{provenance.data_name}`{origin}, fingerprint `{provenance.fingerprint}`")
    report_of = (provenance.run.manifest.get("data") or {}).get("report") or {}
    for split, report in report_of.items():
        read, kept = report.get("rows"), report.get("kept")
        lines.append(f"  - {split}: {read} rows read, {kept} kept")
    if terms := provenance.reward_terms:
        lines.append("- Rewards of its training. They are proxies and not the quality of a response itself")
        lines += [f"  - {term}" for term in terms]
    else:
        lines.append("- Rewards: none was maximised")
    if is_reward_model(provenance.model_dir):
        lines.append(
            "- Its score is a proxy: it was fitted to the preferences or labels of these data, and can be exploited"
        )
    return lines


def _training(view: View) -> list[str]:
    provenance = view.provenance
    lines = ["## Training", "", "| setting | value |", "|---|---|"]
    for name, value in provenance.main_settings().items():
        lines.append(f"| `{name}` | {_cell(value)} |")
    seconds = provenance.run.seconds
    if seconds is not None:
        lines += ["", f"This stage took {seconds:.0f} s, without the stages before it."]
    return lines


def _evaluation(view: View) -> list[str]:
    run = view.provenance.run
    lines = ["## Evaluation", ""]
    policies = run.policies
    if len(policies) > MOST_POLICIES:
        # the starting point, and the end of the training
        first = 2 if _has_soup(view) else 1
        policies = (*policies[:first], *policies[first - MOST_POLICIES :])
    if policies:
        lines += _policy_table(view, policies)
    stage = _stage_estimates(view)
    shown = _shown(stage)
    if shown:
        lines += ["| metric | mean [95 % interval] | n |", "|---|---|---:|"]
        for name in shown:
            title, estimate = judged_title(name, run.has_gold), stage[name]
            lines.append(f"| {title} | {_number(estimate)} | {estimate.n} |")
        lines.append("")
    if len(lines) == 2:  # only the heading
        return [*lines, "The run has no measurements on held-out data."]
    clusters = view.provenance.algorithm_class.evidence.clusters
    lines.append(
        f"Means with 95 % intervals, clustered by {clusters.name}. The intervals cover other {clusters.plural}, "
        "but not other training runs."
    )
    return lines


def _policy_table(view: View, policies: Sequence[EvaluatedPolicy]) -> list[str]:
    has_gold = view.provenance.run.has_gold
    measured = {name: value for policy in policies for name, value in policy.metrics.items()}
    policy_names = " | ".join(policy.name for policy in policies)
    lines = [f"| metric | {policy_names} |", f"|---|{'---|' * len(policies)}"]
    names = _shown(measured)
    size = usual_size(policy.metrics.get(name) for name in names for policy in policies)
    for name in names:
        cells = []
        for policy in policies:
            value = policy.metrics.get(name)
            cells.append(with_own_size(_number(value), value, size) if value else "–")
        title = judged_title(name, has_gold)
        lines.append(f"| {title} | {' | '.join(cells)} |")
    counts = ""
    if size:
        plural = view.provenance.algorithm_class.evidence.clusters.plural
        counts = f" Per policy: {size[0]} responses to {size[1]} held-out {plural}; different counts follow a number."
    start = "the first is its starting point"
    if _has_soup(view):
        start = (
            "the second is its starting point. KL, win rate and drift refer to the first, the mean of the weights of "
            "two policies (`needs.soup`)"
        )
    note = f"The last column is the published model; {start}.{counts}"
    return [*lines, "", note, ""]


def _has_soup(view: View) -> bool:
    """Return True if the reference of the run is a mean of weights, which is evaluated before the starting point."""
    return SOUP in (view.provenance.run.manifest.get("needs") or {})


def _limits(view: View) -> list[str]:
    provenance, run = view.provenance, view.provenance.run
    lines = ["## Limits", ""]
    if run.has_gold:
        lines.append(f"- Gold is {without_local_paths(run.gold_source)}.")
    elif run.policies and not run.has_verified_answers:
        lines.append(
            "- No gold: only the training reward was measured, not whether responses are better in any other respect."
        )
    lines.append("- Anything outside the tables above was not measured: safety, other tasks, other languages.")
    seed = provenance.settings.get("seed")
    lines.append(f"- One training run with seed {seed}; other seeds may differ.")
    lines.append(f"- {_monitor_words(view)}")
    lines.append(f"- {_gate_words(view.gated)}")
    lines += [f"- Note of the run: {without_local_paths(note)}" for note in run.notes]
    if not view.request.license:
        lines.append("- No license was named; the licenses of the base model and of the data apply.")
    return lines


def _monitor_words(view: View) -> str:
    state = monitor_state(view.provenance.run, None)
    return f"Monitor of reward hacking: {state[1]}." if state else "This stage did not monitor reward hacking."


def _gate_words(decision: Decision | None) -> str:
    if decision is None:
        return "No gate was applied for this publication."
    # Checks that passed are not listed: the card has to state what speaks against the model.
    verdicts = [verdict for verdict in decision.verdicts if verdict.failed or verdict.state == "undecided"]
    stated = "; ".join(f"{verdict.check.name} {verdict.state} ({verdict.words})" for verdict in verdicts)
    outcome = "passed" if decision.passed else "failed"
    details = f": {stated}" if stated else ""
    return without_local_paths(f"Gate `{decision.suite.suite}`: {outcome}{details}.")


def _reproduction(view: View) -> list[str]:
    provenance = view.provenance
    manifest = provenance.run.manifest
    versions = manifest.get("versions") or {}
    libraries = ", ".join(f"{name} {value}" for name, value in versions.items() if name != "rlhf_lab" and value)
    command = ["It was started from Python, so there is no command."]
    if provenance.command:
        command = ["```", provenance.command, "```"]
    return [
        "## Reproduction",
        "",
        *command,
        "",
        f"rlhf_lab {provenance.code}; {libraries}. Started {manifest.get('created')}.",
    ]


def _number(estimate: Estimate | None) -> str:
    """Format an estimate as `0.722 [0.703, 0.741]`, or as a bare number if it has no interval."""
    if estimate is None or not math.isfinite(estimate.mean):
        return "–"
    mean = f"{estimate.mean:.3f}"
    return f"{mean} [{_interval(estimate)}]" if estimate.bounded else mean


def _interval(estimate: Estimate) -> str:
    return f"{estimate.low:.3f}, {estimate.high:.3f}"


def _cell(value: Any) -> str:
    """Format a setting's value for a cell of a Markdown table."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
