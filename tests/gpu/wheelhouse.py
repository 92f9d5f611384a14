"""Wheels of what a GPU machine without network lacks, for its Python and platform.

    python tests/gpu/wheelhouse.py --python 3.12 --installed pip-freeze.txt --to .wheelhouse
    # on the other machine, from the checkout:
    python3 -m pip install --no-index --no-deps --target /tmp/site .wheelhouse/*.whl
    PYTHONPATH=/tmp/site:$PWD python3 tests/gpu/run.py numeric

The machine's own torch, transformers and numpy are used as they are, whatever their versions. Only packages that are
not in the list of installed ones are downloaded, in the versions of constraints.txt and without their dependencies.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 34, 31, 28, 24, 17)] + ["manylinux2014_x86_64"]

CORE = (
    *("hydra-core", "omegaconf", "antlr4-python3-runtime", "hydra-joblib-launcher", "joblib", "cloudpickle"),
    *("datasets", "dill", "multiprocess", "xxhash", "pyarrow", "pandas", "python-dateutil", "six"),
    *("jsonschema", "jsonschema-specifications", "referencing", "rpds-py", "attrs"),
    *("rich", "markdown-it-py", "mdurl", "Pygments", "Jinja2", "MarkupSafe", "filelock", "PyYAML", "packaging"),
    *("scipy", "vl-convert-python", "peft", "accelerate", "psutil", "pytest", "pluggy", "iniconfig"),
)
"""Packages that rlhf_lab imports (except torch, transformers, numpy), with dependencies, and those for its tests."""
EXTRA = {"quantized": ("bitsandbytes",), "trl": ("trl",)}
SOURCE_ONLY = {"antlr4-python3-runtime"}
"""Published as source alone; pure Python, so a wheel made here serves every Python 3."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version of the other machine's Python")
    parser.add_argument("--installed", type=Path, help="what it has: the output of pip freeze, or a name per line")
    parser.add_argument("--extra", action="append", choices=EXTRA, default=[], help="further packages; large")
    parser.add_argument("--to", type=Path, default=ROOT / ".wheelhouse")
    options = parser.parse_args()
    expected = [*CORE, *(name for extra in options.extra for name in EXTRA[extra])]
    have = names(options.installed.read_text(encoding="utf-8")) if options.installed else set()
    missing = [name for name in expected if normal(name) not in have]
    options.to.mkdir(parents=True, exist_ok=True)
    for name in missing:
        requirement = pinned(name)
        print(requirement, flush=True)
        subprocess.run([sys.executable, "-m", "pip", *fetch(name, requirement, options.python, options.to)], check=True)
    size = sum(wheel.stat().st_size for wheel in options.to.glob("*.whl"))
    print(f"{len(missing)} packages, {size / 2**20:.0f} MiB in {options.to}")


def fetch(name: str, requirement: str, python: str, to: Path) -> list[str]:
    """Arguments of pip that put a wheel for the other machine into `to`."""
    if name in SOURCE_ONLY:
        return ["wheel", "--quiet", "--no-deps", "--wheel-dir", str(to), requirement]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    target = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms]
    return ["download", "--quiet", "--no-deps", *target, "--dest", str(to), requirement]


def pinned(name: str) -> str:
    """`name==version` of constraints.txt."""
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if normal(line.partition("==")[0]) == normal(name):
            return line.strip()
    return name


def names(listing: str) -> set[str]:
    """Normalised names of the packages in a listing, with versions or without."""
    return {normal(re.split(r"[=@ ,;\[]", line.strip())[0]) for line in listing.splitlines() if line.strip()}


def normal(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower().strip()


if __name__ == "__main__":
    main()
