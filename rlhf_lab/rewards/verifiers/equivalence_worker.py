"""Worker that compares answers as mathematics in a separate process: lines of JSON in, lines of JSON out.

equivalence.py runs it as a script without rlhf_lab. sympy may run forever or use all memory on a single answer, and no
thread could stop it. The parent kills this process if an answer takes too long; the memory limit is set here.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from dataclasses import replace
from typing import Any


def _with_imaginary_unit(side: list[Any]) -> list[Any]:
    """Return an answer as parsed by math-verify, with i as the imaginary unit: i^2 is -1."""
    from sympy import Basic, I

    forms = []
    for form in side:
        letters_i = {symbol: I for symbol in form.free_symbols if str(symbol) == "i"} if isinstance(form, Basic) else {}
        forms.append(form.subs(letters_i) if letters_i else form)
    return forms


def main() -> None:
    """Set the memory limit, load math-verify, then write one JSON line for each pair of answers that is read."""
    limit = int(sys.argv[1]) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    logging.disable(logging.CRITICAL)  # the library warns that its own timeouts are off
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    latex = LatexExtractionConfig()
    # Units were parsed before. The library would also read letters of formulas as units, so that 3ab would be 3.
    latex = replace(latex, normalization_config=replace(latex.normalization_config, units=False))
    forms = (latex, ExprExtractionConfig())
    # The parent waits for this line, because importing sympy takes seconds.
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        gold, stated = json.loads(line)
        try:
            sides = [parse(f"${answer}$", extraction_config=forms, parsing_timeout=None) for answer in (gold, stated)]
            equal = any(
                verify(*written, allow_set_relation_comp=True, timeout_seconds=None)
                for written in (sides, [_with_imaginary_unit(side) for side in sides])
            )
        except Exception:  # an answer that the library cannot parse or compare is not shown to be equal
            equal = False
        print(json.dumps({"equal": equal}), flush=True)


if __name__ == "__main__":
    main()
