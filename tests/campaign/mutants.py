"""The mutation campaign: small semantic faults in the lab's own code, one at a time, and whether the fast tests notice.

    python tests/campaign/mutants.py --out docs/results/mutants.md

`mutations.py` lists the faults, `anchors.py` finds their locations. Each is created in a copy of the checkout, never in
the checkout itself, and the tests of tests/numeric, tests/unit and tests/config run on the copy until one fails. The
test that noticed the fault before comes first, then test files that import the mutated module, then those that reach
it through one other module, then all the rest: a fault counts as survived only after every fast test has passed. A test
that fails has to fail alone as well, and at the end a control shows that it passes on a copy whose mutated files got
one more comment instead: no test fails by its order, or because a file changed.

Outcomes are kept in `mutants.json` next to the page. One whose fault, mutated module and noticing test are unchanged
is not repeated, so that an interrupted campaign resumes. `--only` repeats single faults in any case, `--new` those
that never ran, `--page` none: it writes the page of what is kept. `--tests FILE …` runs these test files alone; a
fault that they do not notice is printed and not kept, because other tests may notice it. Exit status 1 when fewer than
95 % are noticed, 2 when the control fails or a fault breaks an import.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

# What tests/conftest.py sets, before torch is imported here for all test runs.
os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false")
os.environ.update(HF_HUB_OFFLINE="1", NO_COLOR="1")

from anchors import Mutant
from mutations import MUTANTS

FORK = get_context("fork")
ROOT = Path(__file__).resolve().parents[2]
FAST = ("tests/numeric", "tests/unit", "tests/config")
LEFT_BEHIND = (".git", ".venv", "outputs", "build", "dist", "__pycache__", ".*_cache", "*.egg-info")
BUILT_BY_NAME = ("algorithms", "evaluations", "data", "models", "rewards", "sampling", "training.sharding")
"""Packages whose modules the registry imports by a name in a config: a test says "ppo" and runs `ppo.py` of one."""
BAR = 0.95
LIMIT_S = 3600
"""A pytest process that runs longer than this has noticed nothing."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one mutant.

    Attributes:
        mutant: its name.
        noticed_by: the first test that failed, or None when every fast test passed.
        digest: of the fault, the module that contains it and the file of that test.
        controlled: the test passed where nothing but a comment had changed.
    """

    mutant: str
    noticed_by: str | None
    seconds: float
    digest: str
    controlled: bool = False

    def line(self) -> str:
        return f"{self.mutant:45} {self.seconds:6.0f} s  {self.noticed_by or 'SURVIVED'}"


class Record:
    """Outcomes on disk, in the order of the table."""

    def __init__(self, path: Path | None):
        self.path = path
        rows = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else []
        self.outcomes = {row["mutant"]: Outcome(**row) for row in rows}

    def keep(self, outcome: Outcome) -> None:
        self.outcomes[outcome.mutant] = outcome
        if self.path:
            order = [mutant.name for mutant in MUTANTS if mutant.name in self.outcomes]
            rows = [json.dumps(asdict(self.outcomes[name]), ensure_ascii=False) for name in order]
            draft = self.path.with_suffix(".json.part")
            draft.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
            draft.replace(self.path)

    def valid(self) -> dict[str, Outcome]:
        """Name → outcome that still holds. That of a survivor never does: any test may notice it by now."""
        return {
            mutant.name: outcome
            for mutant in MUTANTS
            if (outcome := self.outcomes.get(mutant.name)) and outcome.noticed_by
            if outcome.digest == digest(mutant, outcome.noticed_by)
        }

    def noticed_by(self, mutant: Mutant) -> str | None:
        """Return the test that noticed a mutant in its latest run, if its file is still there."""
        outcome = self.outcomes.get(mutant.name)
        known = outcome.noticed_by if outcome else None
        return known if known and (ROOT / known.partition("::")[0]).exists() else None


def digest(mutant: Mutant, test: str | None) -> str:
    """Return a digest of all that makes a test notice a mutant: the fault, its code and the test, without comments."""
    files = [mutant.file, *([test.partition("::")[0]] if test else [])]
    if not all((ROOT / file).exists() for file in files):
        return ""
    trees = [ast.dump(_tree(file)) for file in files]
    return hashlib.sha256(json.dumps([mutant.where, mutant.before, mutant.after, *trees]).encode()).hexdigest()[:16]


class Broken(RuntimeError):
    """The campaign cannot be judged: the control failed, or a mutant keeps a module from being imported."""


class Copy:
    """A copy of the checkout in which one mutant at a time lives.

    Args:
        tests: test files that run on a mutant; empty for all fast tests.
    """

    def __init__(self, directory: Path, tests: Sequence[str] = ()):
        self.root, self.scratch, self.tests = directory / "checkout", directory / "tmp", tests
        shutil.copytree(ROOT, self.root, ignore=shutil.ignore_patterns(*LEFT_BEHIND))

    def judge(self, mutant: Mutant, known: str | None = None) -> Outcome:
        """Run the fast tests on a mutant until one fails, beginning with the one that is known to have failed."""
        start, path = time.monotonic(), self.root / mutant.file
        original = path.read_text(encoding="utf-8")
        try:
            self._write(path, mutant.apply(original))
            test = self._noticed_by(mutant, known)
            return Outcome(mutant.name, test, round(time.monotonic() - start, 1), digest(mutant, test))
        finally:
            self._write(path, original)

    def _noticed_by(self, mutant: Mutant, known: str | None) -> str | None:
        """The first test that fails, among others and alone; one that only fails after others says nothing."""
        if known and (failed := self.first_failure([function_of(known)])):
            return failed
        doubtful: list[str] = []
        for group in [self.tests] if self.tests else test_files(mutant.file):
            while failed := self.first_failure(group, without=doubtful):
                if self.first_failure([function_of(failed)]):
                    return failed
                doubtful.append(function_of(failed))
        return None

    def control(self, outcomes: Sequence[Outcome]) -> None:
        """Raise Broken when a test that noticed a mutant also fails where nothing but a comment changed."""
        names = {outcome.mutant for outcome in outcomes}
        for name in {mutant.file for mutant in MUTANTS if mutant.name in names}:
            path = self.root / name
            self._write(path, path.read_text(encoding="utf-8") + "# a comment\n")
        tests = {function_of(outcome.noticed_by) for outcome in outcomes if outcome.noticed_by}
        failed = self.first_failure(sorted(tests)) if tests else None
        if failed:
            raise Broken(f"{failed} also fails without a mutant; correct it, as it says nothing about mutants")

    def first_failure(self, tests: Sequence[str], without: Sequence[str] = ()) -> str | None:
        """The first test that fails, or None."""
        options = ["-x", "--no-header", "--tb=no", "-rfE", f"--basetemp={self.scratch}"]
        fast = ["-m", "not learn and not end_to_end and not slurm", *(f"--deselect={test}" for test in without)]
        log = self.root.with_name("pytest.txt")
        process = FORK.Process(target=run_pytest, args=(self.root, [*options, *fast, *tests], log))
        process.start()
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()
            return None
        text = log.read_text(encoding="utf-8")
        found = re.search(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", text, re.MULTILINE)
        if process.exitcode == 1 and found:
            return found[1]
        if process.exitcode in (0, 5):  # 5: the markers left no test of these files
            return None
        if process.exitcode == 4 and "not found: " in text:  # the test that noticed a mutant before is no more
            return None
        raise Broken(f"pytest ended with {process.exitcode}:\n{text[-2000:]}")

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Python takes stored bytecode for a file of the same size and second, which a mutant and its original may be.
        for stored in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            stored.unlink()


def function_of(test: str) -> str:
    """The id of a test without its parameters, which may hold anything."""
    return test.partition("[")[0]


def preload() -> None:
    """Import once what nearly every test file imports; no tensor is touched, so that a fork is like a fresh process."""
    import datasets  # noqa: F401
    import hydra  # noqa: F401
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import safetensors.torch  # noqa: F401
    import statsmodels.stats.power  # noqa: F401
    import transformers.models.gpt2.modeling_gpt2
    import transformers.models.llama.modeling_llama  # noqa: F401

    with suppress(ImportError):  # extras, whose tests are skipped without them
        import peft  # noqa: F401
        from trl import DPOTrainer, GRPOTrainer  # noqa: F401


def run_pytest(root: Path, arguments: list[str], log: Path) -> None:
    """Run pytest in this process, as if it had been started in `root`; its output goes to a file."""
    import pytest

    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    sys.argv = ["pytest", *arguments]
    # Processes that a test starts would otherwise import this script as their main module.
    sys.modules["__main__"] = ModuleType("__main__")
    for name in ("anchors", "mutations"):  # tests import modules of their own by such a name
        sys.modules.pop(name, None)
    of_checkout = (ROOT, ROOT / "tests", ROOT / "tests" / "campaign")
    sys.path[:] = [str(root), *(entry for entry in sys.path if Path(entry) not in of_checkout)]
    with log.open("w", encoding="utf-8") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    sys.exit(int(pytest.main(arguments)))


def test_files(mutated: str) -> list[list[str]]:
    """All fast test files in three groups by their distance from a mutated file: direct, through one module, the rest.

    Within a group the nearest come first; among those the ones that share a word of their name with the module, and
    arithmetic before whole commands.
    """
    distance, words = distances(mutated), set(Path(mutated).stem.split("_"))

    def nearness(name: str) -> tuple[float, bool, int, str]:
        directory = next(i for i, directory in enumerate(FAST) if name.startswith(directory))
        return distance[name], not words & set(Path(name).stem.split("_")), directory, name

    groups: list[list[str]] = [[], [], []]
    for name in sorted(distance, key=nearness):
        groups[int(min(distance[name], 3)) - 1].append(name)
    return [group for group in groups if group]


def distances(mutated: str) -> dict[str, float]:
    """Test file → imports between it and a file of the package; inf where none leads there."""
    graph, start = imports_of_modules(), _dotted(mutated)
    steps, waiting = {start: 0}, deque([start])
    while waiting:
        module = waiting.popleft()
        for importer, imported in graph.items():
            if module in imported and importer not in steps:
                steps[importer] = steps[module] + 1
                waiting.append(importer)
    return {
        name: 1 + min((steps[module] for module in named if module in steps), default=math.inf)
        for name, named in names_in_tests().items()
    }


@cache
def imports_of_modules() -> dict[str, frozenset[str]]:
    """Module of the package → what of the package it imports anywhere in its text."""
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "rlhf_lab").rglob("*.py")]
    return {_dotted(name): _imports(name) for name in files}


@cache
def names_in_tests() -> dict[str, frozenset[str]]:
    """Fast test file → modules that it imports, or names as a registered kind."""
    kinds: dict[str, set[str]] = {}
    for module in imports_of_modules():
        package, _, stem = module.removeprefix("rlhf_lab.").rpartition(".")
        if f"{package}.".startswith(tuple(f"{name}." for name in BUILT_BY_NAME)):
            kinds.setdefault(stem, set()).add(module)
    found = {}
    for directory in FAST:
        for path in (ROOT / directory).rglob("test_*.py"):
            name = str(path.relative_to(ROOT))
            texts = [node.value for node in ast.walk(_tree(name)) if isinstance(node, ast.Constant)]
            built = [kinds[text] for text in texts if isinstance(text, str) and text in kinds]
            found[name] = _imports(name).union(*built)
    return found


def _imports(name: str) -> frozenset[str]:
    found = set()
    for node in ast.walk(_tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(module for module in found if module.startswith("rlhf_lab"))


@cache
def _tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"))


def _dotted(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


# --- the page ---------------------------------------------------------------------------------------------------------

INTRO = """# Mutants

Each row is one small fault that a careful developer could make: it runs, and its numbers look plausible. It was made in
a copy of the checkout, and the fast tests (tests/numeric, tests/unit, tests/config) ran on the copy until one failed:
first the test that noticed it before, then the files that import the mutated module, those that reach it through one
other module, and all the others. A survivor has passed every fast test. Tests that train (tests/learn,
tests/end_to_end) did not run. An outcome stays while the fault, the mutated module and the test are as they were
(`mutants.json`).
"""


def render(outcomes: Mapping[str, Outcome], seconds: float, stale: int = 0) -> str:
    """Return the page as Markdown, with a row for each mutant of the table: survivors and those not run first.

    Args:
        stale: outcomes of faults whose module or test has changed since.
    """
    sys.path.insert(0, str(ROOT))  # another checkout may be the installed one
    from rlhf_lab.stages.manifest import (
        git_sha,  # not earlier: a fork that has the package imported would not run the copy's
    )

    noticed = [mutant for mutant in MUTANTS if mutant.name in outcomes and outcomes[mutant.name].noticed_by]
    others = [mutant for mutant in MUTANTS if mutant not in noticed]
    missing = sum(mutant.name not in outcomes for mutant in others)
    unchecked = sum(not outcomes[mutant.name].controlled for mutant in noticed)
    control = "Every test named here passed without a mutant."
    if unchecked:
        control = f"Not run without a mutant yet: the tests of {unchecked} rows."
    if stale:
        control += f" {stale} rows are of an earlier version of their module or test."
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "scipy", "pytest"))
    metadata = [
        f"- **{len(noticed)} of {len(MUTANTS)} noticed ({len(noticed) / len(MUTANTS):.0%}); the bar is {BAR:.0%}.**"
        + (f" {missing} not run." if missing else ""),
        "- `python tests/campaign/mutants.py --out docs/results/mutants.md` (`make mutants`)",
        f"- {time.strftime('%Y-%m-%d')}, commit {(git_sha() or 'unknown')[:7]}, Python {platform.python_version()}, "
        f"{versions}, {platform.system()}, {seconds / 60:.0f} min. {control}",
    ]
    columns = ["mutant", "what a researcher would get wrong", "file", "noticed by", "s"]
    rows = [columns, ["---", "---", "---", "---", "---:"]]
    for mutant in [*others, *noticed]:
        outcome = outcomes.get(mutant.name)
        test = f"`{outcome.noticed_by.removeprefix('tests/')}`" if outcome and outcome.noticed_by else "**nothing**"
        file = f"`{mutant.file.removeprefix('rlhf_lab/')}`"
        last = [test, f"{outcome.seconds:.0f}"] if outcome else ["not run", ""]
        rows.append([mutant.name, mutant.harm, file, *last])
    table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([INTRO, *metadata, "", *table]) + "\n"


@cache
def own_copy(directory: Path, tests: tuple[str, ...]) -> Copy:
    """The copy of this worker process."""
    return Copy(directory / str(os.getpid()), tests)


def judged(mutant_and_test: tuple[Mutant, str | None], directory: Path, tests: tuple[str, ...]) -> Outcome:
    return own_copy(directory, tests).judge(*mutant_and_test)


def write_page(path: Path, record: Record) -> None:
    """The page of all outcomes that are kept, and how many of them are of an earlier version of the code."""
    outcomes = record.outcomes
    seconds = sum(outcome.seconds for outcome in outcomes.values())
    stale = sum(outcome.noticed_by is not None for outcome in outcomes.values()) - len(record.valid())
    path.write_text(render(outcomes, seconds, stale), encoding="utf-8")


def main() -> int:
    options = parse()
    record = Record(options.out.with_suffix(".json") if options.out else None)
    valid = record.valid()
    if options.page:
        write_page(options.out, record)
        return 0
    names = options.only or [mutant.name for mutant in MUTANTS if mutant.name not in valid]
    is_whole = not (options.only or options.new)
    if options.new:
        names = [mutant.name for mutant in MUTANTS if mutant.name not in record.outcomes]
    chosen = [mutant for mutant in MUTANTS if mutant.name in names]
    directory = Path(tempfile.mkdtemp(prefix="mutants-"))
    start = time.monotonic()
    generated = {}
    preload()
    try:
        with ProcessPoolExecutor(options.workers, mp_context=FORK) as pool:
            known = [record.noticed_by(mutant) for mutant in chosen]
            judge = partial(judged, directory=directory, tests=tuple(options.tests))
            for outcome in pool.map(judge, zip(chosen, known, strict=True)):
                generated[outcome.mutant] = outcome
                if outcome.noticed_by or not options.tests:
                    record.keep(outcome)
                print(outcome.line(), flush=True)
        unchecked = [outcome for outcome in record.valid().values() if not outcome.controlled]
        if unchecked:
            Copy(directory / "control").control(unchecked)
        for outcome in unchecked:
            record.keep(replace(outcome, controlled=True))
    except Broken as broken:
        print(broken)
        return 2
    finally:
        shutil.rmtree(directory)
    if options.out:
        write_page(options.out, record)
    judged_here = list({**valid, **generated}.values() if is_whole else generated.values())
    noticed = sum(outcome.noticed_by is not None for outcome in judged_here)
    print(f"{noticed} of {len(judged_here)} noticed, {time.monotonic() - start:.0f} s")
    return 0 if noticed >= BAR * len(judged_here) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [mutant.name for mutant in MUTANTS]
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help="these mutants in any case")
    parser.add_argument("--new", action="store_true", help="mutants without a kept outcome")
    parser.add_argument("--tests", nargs="+", metavar="FILE", default=(), help="run these test files alone")
    parser.add_argument("--workers", type=int, default=1, help="mutants at a time, a copy of the checkout for each")
    parser.add_argument("--out", type=Path, help="Markdown report to write")
    parser.add_argument(
        "--page", action="store_true", help="write the report of the outcomes that are kept, run nothing"
    )
    options = parser.parse_args()
    if options.page and not options.out:
        parser.error("--page needs --out, beside which outcomes are kept; add --out docs/results/mutants.md")
    return options


if __name__ == "__main__":
    sys.exit(main())
