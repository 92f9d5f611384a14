"""Compares answers as mathematics, in a process of its own: lines of JSON in, lines of JSON out.

Run as a script by equivalence.py, without the lab: sympy may take forever or all memory on a single answer, and no
thread can stop it. The parent ends this process when an answer takes too long; the limit of memory is set here.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from dataclasses import replace
from typing import Any


def _with_imaginary_unit(side: list[Any]) -> list[Any]:
    """What the library read of an answer, with i as the imaginary unit: i^2 is -1."""
    from sympy import Basic, I

    forms = []
    for form in side:
        letters_i = {symbol: I for symbol in form.free_symbols if str(symbol) == "i"} if isinstance(form, Basic) else {}
        forms.append(form.subs(letters_i) if letters_i else form)
    return forms


def main() -> None:
    limit = int(sys.argv[1]) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    logging.disable(logging.CRITICAL)  # the library warns that its own timeouts are off
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    latex = LatexExtractionConfig()
    # units are read before; the library would also take letters of formulas for them, so that 3ab is 3
    latex = replace(latex, normalization_config=replace(latex.normalization_config, units=False))
    forms = (latex, ExprExtractionConfig())
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        gold, stated = json.loads(line)
        try:
            sides = [parse(f"${answer}$", extraction_config=forms, parsing_timeout=None) for answer in (gold, stated)]
            equal = any(
                verify(*written, allow_set_relation_comp=True, timeout_seconds=None)
                for written in (sides, [_with_imaginary_unit(side) for side in sides])
            )
        except Exception:  # whatever the library cannot read or compare is not shown to be equal
            equal = False
        print(json.dumps({"equal": equal}), flush=True)


if __name__ == "__main__":
    main()
