"""Compares answers as mathematics, in a process of its own: lines of JSON in, lines of JSON out.

Run as a script by equivalence.py, without the lab: sympy may take forever or all memory on a single answer, and no
thread can stop it. The parent ends this process when an answer takes too long; the limit of memory is set here.
"""

from __future__ import annotations

import json
import logging
import resource
import sys


def main() -> None:
    limit = int(sys.argv[1]) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    logging.disable(logging.CRITICAL)  # the library warns that its own timeouts are off
    from math_verify import parse, verify

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        gold, stated = json.loads(line)
        try:
            sides = [parse(f"${answer}$", parsing_timeout=None) for answer in (gold, stated)]
            equal = bool(verify(*sides, allow_set_relation_comp=True, timeout_seconds=None))
        except Exception:  # whatever the library cannot read or compare is not shown to be equal
            equal = False
        print(json.dumps({"equal": equal}), flush=True)


if __name__ == "__main__":
    main()
