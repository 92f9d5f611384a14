"""The first hour on a GPU: `python tests/gpu/run.py BLOCK`, one command per block, each at most eight minutes.

    python tests/gpu/run.py list                     # blocks, their cases, and which have run
    python tests/gpu/run.py numeric                  # run what has no result yet; the same command again goes on
    python tests/gpu/run.py speed --only sft-0.6b-8k # one case, again even if it has a result
    python tests/gpu/run.py all --device cpu --tiny  # the dry run: every block at a size that a CPU takes
    python tests/gpu/run.py page                     # write docs/results/gpu.md from the results

Results are JSON lines, one file per block, in docs/results/gpu (on a GPU at full size) or outputs/gpu.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
TESTS = ROOT / "tests"
# The kit first: tests/bench has modules of the same names, of which the kit uses others.
sys.path[:0] = [str(HERE), str(ROOT), *(str(TESTS / name) for name in (".", "numeric", "end_to_end", "bench"))]

import kit  # noqa: E402  (after the path is set)
import page  # noqa: E402

BLOCKS = ("numeric", "memory", "speed", "recipes", "resume", "transfer")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("block", choices=[*BLOCKS, "all", "list", "page"])
    parser.add_argument("--device", choices=["cuda", "cpu", kit.SIMULATED], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes that a CPU takes in seconds")
    parser.add_argument("--minutes", type=float, default=7.5, help="time limit of each block")
    parser.add_argument("--results", type=Path, help="directory of the JSON lines and the pages")
    parser.add_argument("--scratch", type=Path, help="directory for models and stores, kept for the next call")
    parser.add_argument("--only", nargs="+", help="these cases, again even if they have a result")
    parser.add_argument("--check", action="store_true", help="page: exit 1 if it is not up to date; write nothing")
    parser.add_argument("--cases", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()

    if options.block == "page":
        if options.check:
            return int(not page.is_current(BLOCKS))
        page.write(BLOCKS)
        return 0
    counts = options.device == "cuda" and not options.tiny
    results = (options.results or (page.FOLDER if counts else ROOT / "outputs" / "gpu")).resolve()
    scratch = (options.scratch or ROOT / "outputs" / "gpu" / "scratch").resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    target = kit.Target(options.device, options.tiny, scratch)

    if options.cases:  # a worker
        if target.device == kit.SIMULATED:
            import simulated_gpu

            kept = simulated_gpu.install()  # noqa: F841  (its libraries end with the last reference)
        cases = {case.name: case for case in importlib.import_module(options.block).cases(target)}
        kit.work([cases[name] for name in options.cases], target, results / f"{options.block}.jsonl", options.until)
        return 0

    status = 0
    for block in BLOCKS if options.block in ("all", "list") else (options.block,):
        cases = importlib.import_module(block).cases(target)
        file = results / f"{block}.jsonl"
        if options.block == "list":
            print(page.summary(block, cases, file))
            continue
        names = [case.name for case in cases if options.only is None or case.name in options.only]
        if options.only:
            unknown = set(options.only) - set(names)
            if unknown:
                parser.error(f"no case {', '.join(sorted(unknown))} in {block}; run list to see the cases")
            forget(file, options.only)
        worker = [sys.executable, str(HERE / "run.py"), block, "--device", target.device, "--results", str(results)]
        worker += ["--scratch", str(scratch), *(["--tiny"] if target.tiny else [])]
        complete = kit.run_block(block, names, target, file, options.minutes, worker)
        records = [record for name, record in kit.Record.read(file).items() if name in names]
        bad = [record.case for record in records if record.status in ("failed", "error", "killed")]
        print(f"{block}: {len(records)} of {len(names)} cases have a result" + (f"; not passed: {bad}" if bad else ""))
        if not complete:
            print(f"{block}: not complete; the same command goes on")
        status |= bool(bad) or not complete
        page.write_block(block, cases, file)
    return int(status)


def forget(file: Path, names: list[str]) -> None:
    """Remove the results of these cases, so that they run again."""
    kept = [record for name, record in kit.Record.read(file).items() if name not in names]
    file.unlink(missing_ok=True)
    for record in kept:
        record.append(file)


if __name__ == "__main__":
    sys.exit(main())
