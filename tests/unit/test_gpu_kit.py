"""The GPU kit (`tests/gpu`) records each result at once, goes on after a broken worker, and says what has not run."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
KIT = HERE / "gpu"


def test_model_flops(monkeypatch):
    """2 layers of width 4 with one head: 6 per parameter, and causal attention.

    Per block q, k, v, o: 4 × 4·4 = 64; gate, up, down: 3 × 4·8 = 96. Head: 10 × 4 = 40.
    Parameters: 2 · 160 + 40 = 360; 6 × 360 = 2160. Attention for a row of 6: scores and values, 2 operations each over
    3 earlier tokens on average and width 4, 2 layers: 2·2·3·4·2 = 96; forward and backward: 288.
    """
    monkeypatch.syspath_prepend(str(KIT))
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
