"""The candidate's process: loads the code that is graded, then answers calls, one line of JSON each.

Nothing here is secret or trusted: the code may change all of it, and can then give other answers, which it could give
anyway. What it prints goes to standard error.
"""

import os
import sys
from typing import Any

from rlhf_lab.packs.code.sandbox.harness import plain

CODE = "solution.py"


def load() -> tuple:
    """The names that the code defines, and what went wrong; empty if nothing did."""
    with open(CODE, encoding="utf-8", errors="surrogatepass") as file:
        text = file.read()
    names = {"__name__": "solution", "__file__": CODE}
    try:
        exec(compile(text, CODE, "exec"), names)
    except BaseException as error:
        return names, _described(error)
    return names, {}


def answer(names: dict, request: dict) -> dict:
    """What a call gives: its value, and its arguments as it left them; or the error it ended with."""
    try:
        function = names[request["name"]]
    except KeyError:
        return {"error": "NameError", "message": f"name {request['name']!r} is not defined"}
    try:
        value = function(*request["args"], **request["kwargs"])
        return {"value": value, "args": request["args"]}
    except BaseException as error:
        return _described(error)


def _described(error: BaseException) -> dict:
    try:
        message = str(error)[:500]
    except BaseException:
        message = ""
    return {"error": type(error).__name__, "message": message}


def main() -> None:
    requests = os.fdopen(os.dup(0), "r", encoding="ascii")
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())
    names, problem = load()
    print(plain.dumps(problem), file=answers, flush=True)
    for line in requests:
        request: Any = plain.loads(line)
        reply = answer(names, request)
        try:
            text = plain.dumps(reply)
        except plain.NotPlain as error:
            text = plain.dumps({"not_plain": str(error)})
        print(text, file=answers, flush=True)


if __name__ == "__main__":
    main()
