"""What a run of speech says to its question."""

from __future__ import annotations

from rlhf_lab.results.rundir import Run
from rlhf_lab.results.wording import compact


def phones_heard(run: Run) -> str | None:
    """A recogniser: phone errors in chosen, in rejected clips, and where the text is another one."""
    places = {
        "chosen": "in chosen clips",
        "rejected": "in rejected ones",
        "other": "where they are held against another text",
    }
    found = {side: run.results.get(f"phone_error/{side}") for side in places}
    heard = [f"{compact(error)} {places[side]}" for side, error in found.items() if error is not None]
    return f"Of the phones of held-out clips the recogniser hears wrongly {', '.join(heard)}." if heard else None
