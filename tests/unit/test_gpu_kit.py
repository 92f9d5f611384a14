"""The GPU kit (`tests/gpu`) records each result at once, goes on after a broken worker, and says what has not run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]
KIT = HERE / "gpu"
WORKER = f"""
import os, sys, time
sys.path[:0] = [{str(KIT)!r}, {str(HERE)!r}]
import kit
from pathlib import Path

def good():
    return kit.Outcome({{"x": 1.0}}, True, "a bound")

def bad():
    return kit.Outcome({{"x": 2.0}}, False)

def broken():
    os._exit(7)

def raises():
    raise ValueError("no such kernel")

CASES = [kit.Case("good", good), kit.Case("broken", broken), kit.Case("bad", bad), kit.Case("raises", raises),
         kit.Case("missing", good, needs=("no_such_module",)), kit.Case("gpu", good, real_gpu=True),
         kit.Case("long", good, expected_s=10_000)]

if __name__ == "__main__":
    file, until, names = Path(sys.argv[1]), float(sys.argv[3]), sys.argv[5:]
    kit.work([c for c in CASES if c.name in names], kit.Target("cpu", False, Path(sys.argv[1]).parent), file, until)
"""


@pytest.fixture(scope="module")
def kit(monkeypatch_module):
    """The module `tests/gpu/kit.py`."""
    monkeypatch_module.syspath_prepend(str(KIT))
    import kit

    return kit


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def results(kit, tmp_path_factory) -> Path:
    """Results of a block with a worker that dies, after one call of `run_block`."""
    directory = tmp_path_factory.mktemp("kit")
    script = directory / "worker.py"
    script.write_text(WORKER)
    file = directory / "results" / "block.jsonl"
    names = ["good", "broken", "bad", "raises", "missing", "gpu", "long"]
    target = kit.Target("cpu", True, directory)
    complete = kit.run_block("block", names, target, file, 1.0, [sys.executable, str(script), str(file)])
    assert not complete, "a case that does not fit into the time has no result"
    return file


def test_model_flops(kit):
    """2 layers of width 4 with one head: 6 per parameter, and causal attention.

    Per block q, k, v, o: 4 × 4·4 = 64; gate, up, down: 3 × 4·8 = 96. Head: 10 × 4 = 40.
    Parameters: 2 · 160 + 40 = 360; 6 × 360 = 2160. Attention for a row of 6: scores and values, 2 operations each over
    3 earlier tokens on average and width 4, 2 layers: 2·2·3·4·2 = 96; forward and backward: 288.
    """
    import scale

    from rlhf_lab.memory.sizes import ModelShape

    model = ModelShape("llama", 4, 2, 1, 1, 4, 8, 10)
    assert scale.training_flops_per_token(model, 6) == 2160 + 288
    assert scale.training_flops_per_token(model, 6, adapter=True) == 4 * 360 + 288
    # A decoding step of 3 rows with 5 tokens each: 360 weights and 2·2·4·5·3 = 240 numbers of KV cache, 2 bytes each.
    assert scale.decoding_bytes_per_step(model, 3, 5) == 2 * 360 + 2 * 240


def test_registered_claims_name_a_claim_of_a_study():
    """Every row of the ledger names a study, the index of one of its claims, and the sign that its page found."""
    import yaml

    root = HERE.parent
    rows = json.loads((KIT / "claims.json").read_text())
    assert len(rows) >= 2
    for row in rows:
        study = yaml.safe_load((root / "recipes" / f"{row['study']}.yaml").read_text())["study"]
        assert 0 <= row["claim"] < len(study["predicts"])
        assert row["sign"] in "+-"
        page = next((root / "docs" / "results").rglob(row["page"])).read_text()
        line = next(line for line in page.splitlines() if line.startswith(f"| {row['text']} |"))
        assert "confirmed" in line and ("−" if row["sign"] == "-" else "+") in line.split("|")[3]
