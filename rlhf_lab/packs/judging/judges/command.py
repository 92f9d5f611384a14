"""The sub-command `judge`: compares the responses of two sources, or grades those of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import numpy as np

from rlhf_lab.config import check, command_line, registry, root
from rlhf_lab.config.groups import DataSource, JudgeSource
from rlhf_lab.config.schema import paths_and_options, whole_numbers
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import fingerprint
from rlhf_lab.core.types import Corpus
from rlhf_lab.core.yaml_files import read_mapping
from rlhf_lab.packs.judging.judges.backends.settings import Service
from rlhf_lab.packs.judging.judges.client import estimate
from rlhf_lab.packs.judging.judges.context import JudgeContext, open_judge
from rlhf_lab.packs.judging.judges.judgement import JudgeOptions, Judging, names_of
from rlhf_lab.packs.judging.judges.judging import JudgingItem, Metered, number_items
from rlhf_lab.packs.judging.judges.pairwise import Candidates, comparison_requests
from rlhf_lab.packs.judging.judges.requests import CompletionRequest
from rlhf_lab.packs.judging.judges.rubric import JudgeRubric, grade_request, load_rubric, reference_text
from rlhf_lab.packs.judging.judges.sources import Matched, ResponseSource, SourcedResponse, match, read_source
from rlhf_lab.reports.comparison.report import outputs_dir
from rlhf_lab.results.folders import find_run

OPTIONS = ("policy", "items", "seed", "reference", "rubric", "max_tokens", "to", "outputs")
GROUPS = ("judge", "data")
DRY_RUN = "--dry-run"
T = TypeVar("T")


def read_words(words: Sequence[str]) -> JudgeOptions:
    """Parse the words of a command line into options. Raises ConfigError with all problems."""
    problems: list[str] = []
    others = [word for word in words if word != DRY_RUN]
    paths, options, overrides = sort_words(others, "judge", OPTIONS, GROUPS, problems)
    if len(paths) not in (1, 2):
        problems.append("judge takes one or two run directories or JSONL files: judge outputs/runs/A outputs/runs/B")
    numbers = whole_numbers(options, {"items": 0, "seed": 0, "max_tokens": 512}, problems)
    if numbers["max_tokens"] == 0:
        problems.append("max_tokens=0 leaves no tokens for the judge's answer; write 1 or more")
    config = command_line.config_of(overrides, problems)
    # with two sources, a comma separates the policies of A and B
    policies: list[str | None] = [options.get("policy")] * len(paths)
    if len(paths) == 2 and "," in options.get("policy", ""):
        policies = [name.strip() for name in options["policy"].split(",", 1)]
    return JudgeOptions(
        sources=tuple(Path(path) for path in paths),
        policies=tuple(policies),
        reference=options.get("reference", ""),
        rubric=options.get("rubric", ""),
        dry_run=DRY_RUN in words,
        config=config,
        names_data=any(override.startswith("data") for override in overrides),
        to=Path(options["to"]) if "to" in options else None,
        outputs=Path(options["outputs"]) if "outputs" in options else None,
        **numbers,
    )


def sort_words(
    words: Sequence[str], command: str, names: Sequence[str], groups: Sequence[str], problems: list[str]
) -> tuple[list[str], dict[str, str], list[str]]:
    """Return (paths, options by name, overrides of the groups) of a command; append a problem for an unknown option."""
    written = [word for word in words if "=" in word and not Path(word).exists()]
    overrides = [word for word in written if word.partition("=")[0].partition(".")[0] in groups]
    others = [word for word in words if word not in overrides]
    paths, options = paths_and_options(others, command, names, problems, groups)
    return paths, options, overrides


def run(words: Sequence[str]) -> None:
    """Run the judgement, print its results and the output directory."""
    options = read_words(words)
    if any(options.policies) and not any(path.is_dir() for path in options.sources):
        raise ConfigError("policy selects a policy of a run directory, and the sources are files; leave it out")
    sources = []
    for path, policy in zip(options.sources, options.policies, strict=True):
        # a directory may also be a job of a study that refers to a run
        sources.append(read_source(find_run(path) if path.is_dir() else path, policy))
    distinct = {(source.path.resolve(), source.policy) for source in sources}
    if len(distinct) < len(sources):
        raise DataError(f"A and B are the same responses of {sources[0].path}; name two policies: policy='OF A,OF B'")
    # the corpus is built only if the judge or a reference needs it
    data = _data(options, sources)
    corpus: Corpus | None = registry.build("data", data) if data else None
    grades = len(sources) == 1  # one source is graded, two are compared
    rubric = load_rubric(options.rubric) if options.rubric or grades else None
    matched = match(*sources) if len(sources) == 2 else None
    items = _items(options, sources, matched, corpus)
    outputs = options.outputs or outputs_dir(sources[0].path) or Path("outputs")
    caller = context_of(_account(options, sources, rubric), outputs, corpus, options.config, dry_run=options.dry_run)
    if options.dry_run:
        unit = "comparisons" if len(sources) == 2 else "responses"
        requests = _requests(items, rubric, options)
        print_estimate(options.config.judge, caller, requests, f"{len(items)} {unit}")
        return
    judge = open_judge(options.config.judge, caller)
    world = ""
    if data and options.config.judge.reads_truth:
        world = fingerprint([registry.kind_of("data", data), asdict(data)])
    Judging(options, sources, matched, rubric, Metered(judge, world), items).run()


def _account(options: JudgeOptions, sources: Sequence[ResponseSource], rubric: JudgeRubric | None) -> str:
    """Return the name of the account that this command's costs are booked to, the same if it is repeated.

    A command with other sources, another judge or another rubric has its own account and budget.
    """
    judge = options.config.judge
    requested = [registry.kind_of("judge", judge), dict(judge.identity()), rubric.digest if rubric else ""]
    paths = [[str(source.path.resolve()), source.policy] for source in sources]
    digest = fingerprint([requested, paths, options.reference, options.max_tokens])
    return f"judge {' '.join(source.path.name for source in sources)} ({digest[:8]})"


def context_of(
    account: str, outputs: Path, corpus: Corpus | None, config: root.Config, *, dry_run: bool
) -> JudgeContext:
    """Return the context of the requests of a command. `corpus`: data whose truth the judge reads, or None."""
    # imported here because it imports torch, which a command with an error does not need
    from rlhf_lab.core.ranks import device

    return JudgeContext(
        account=account,
        outputs=outputs,
        oracle=corpus.oracle if corpus else None,
        rubric=corpus.rubric if corpus else None,
        device="cpu" if dry_run else device(config.runtime.device),
        note=lambda text: console.print(f"  note: {text}"),
        only_counts=dry_run,
    )


def _data(options: JudgeOptions, sources: Sequence[ResponseSource]) -> DataSource | None:
    """Return the data of the responses if they are needed, for the truth of a world or for references; else None."""
    settings = options.config.judge
    runs = [source for source in sources if source.policy is not None]
    reads_reference = bool(options.reference and (runs or options.names_data))
    if not settings.reads_truth and not reads_reference:
        return None
    if options.names_data:
        return options.config.data.of_run(0)
    if runs:
        return stored_config(runs[0].path).data
    kind = registry.kind_of("judge", settings)
    raise ConfigError(
        f"judge={kind} answers from the truth of a world, which files do not name; add the world of the prompts, "
        "data=mini_hh data.seed=0, or use another judge: judge=anthropic, openai_compatible or local"
    )


def stored_config(directory: Path) -> root.Config:
    """Return the config of a stored run. Raises DataError if it is missing or invalid in this version."""
    path = directory / "config.yaml"
    if not path.is_file():
        raise DataError(f"{directory} has no config.yaml, so its data are unknown; name them: data=…")
    values = read_mapping(path, "the settings of a run")
    try:
        return check.effective({**values, "study": None})
    except ConfigError as error:
        raise DataError(f"{path}: {error}; pass the data that the run was trained on: data=…") from None


def _items(
    options: JudgeOptions, sources: Sequence[ResponseSource], matched: Matched | None, corpus: Corpus | None
) -> list[JudgingItem]:
    """Return the items to judge, in the order of A. With the same seed a smaller selection is part of a larger one."""
    names = names_of(sources)
    sides = matched.pairs if matched else [(answer,) for answer in sources[0].answers]
    candidates = []
    for first, *others in sides:
        second = others[0].response if others else ""
        reference = _reference(options, (first, *others), corpus)
        candidates.append(Candidates(first.prompt, first.response, second, names, reference))
    if options.reference and all(each.reference is None for each in candidates):
        raise DataError(
            f"reference={options.reference}: neither the files nor the data of the run have text in this column; name "
            "another column, or leave it out"
        )
    # number before selecting, so that prompt ids do not depend on the selection
    return selected(number_items(candidates), options.items, options.seed)


def selected(items: list[T], count: int, seed: int) -> list[T]:
    """Return `count` random items in their order; all of them if the count is 0."""
    if not count or count >= len(items):
        return items
    positions = np.random.default_rng(seed).permutation(len(items))[:count]
    return [items[i] for i in sorted(positions.tolist())]


def _reference(options: JudgeOptions, answers: Sequence[SourcedResponse], corpus: Corpus | None) -> str | None:
    """Return the reference answer to a prompt, from a row of a file or else from the data of the run."""
    if not options.reference:
        return None
    metadata = [answer.metadata for answer in answers]
    metadata += [corpus.task(answers[0].prompt).metadata] if corpus else []  # both sides have the same prompt
    texts = (reference_text(known.get(options.reference)) for known in metadata)
    return next((text for text in texts if text is not None), None)


def _requests(
    items: Sequence[JudgingItem], rubric: JudgeRubric | None, options: JudgeOptions
) -> list[CompletionRequest]:
    requests: list[CompletionRequest] = []
    limit = options.max_tokens
    for texts in (item.candidates for item in items):
        if len(options.sources) == 1:
            assert rubric is not None, "grading always has a rubric, at least the shipped one"
            grading = grade_request(rubric, texts.prompt, texts.first, reference=texts.reference, max_tokens=limit)
            requests.append(grading)
        elif texts.first != texts.second:  # identical responses are ties without a request
            requests += comparison_requests(texts, rubric, max_tokens=limit)
    return requests


def print_estimate(judge: JudgeSource, caller: JudgeContext, requests: Sequence[CompletionRequest], what: str) -> None:
    """Print the number and the cost of the requests. Sends and writes nothing."""
    takes: object = f"{len(requests)} requests, at no cost"
    if isinstance(judge, Service):  # opening another judge may load a model, and is not needed
        takes = estimate(open_judge(judge, caller), requests)
    console.print(f"{what}: {takes}")
