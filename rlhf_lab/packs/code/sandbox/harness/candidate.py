"""Candidate process: loads the graded code, then answers calls, one line of JSON each.

Nothing in this process is secret or trusted. The graded code may change all of it, but this only changes its answers,
which it controls anyway. Its printed output goes to standard error.
"""

import os
import sys
import types
from typing import Any

from rlhf_lab.packs.code.sandbox.harness import plain

CODE = "solution.py"


def load() -> tuple:
    """Load the code. Returns the names that it defines, and its error; the error is empty if there was none."""
    with open(CODE, encoding="utf-8", errors="surrogatepass") as file:
        text = file.read()
    module = types.ModuleType("solution")  # not __main__: code for a direct call does not run
    sys.modules[module.__name__] = module  # where dataclasses and typing look up names in annotations
    names = module.__dict__
    names["__file__"] = CODE
    try:
        exec(compile(text, CODE, "exec"), names)
    except BaseException as error:  # includes SystemExit, with which code may try to end the tests
        return names, _described(error)
    return names, {}


def answer(names: dict, request: dict) -> dict:
    """Answer a call: with its value and its arguments after the call, or with the error it raised."""
    try:
        function = names[request["name"]]
    except KeyError:
        return {"error": "NameError", "message": f"name {request['name']!r} is not defined"}
    try:
        value = function(*request["args"], **request["kwargs"])
        return {"value": value, "args": request["args"]}  # a test may check that an argument was changed in place
    except BaseException as error:
        return _described(error)


def _described(error: BaseException) -> dict:
    try:
        message = str(error)[:500]
    except BaseException:
        message = ""
    return {"error": type(error).__name__, "message": message}


def main() -> None:
    # the channel moves to other descriptors, so that `input` and `print` of the code cannot disturb it by accident
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
        response = answer(names, request)
        try:
            text = plain.dumps(response)
        except plain.NotJsonValue as error:
            text = plain.dumps({"not_plain": str(error)})
        print(text, file=answers, flush=True)


if __name__ == "__main__":
    main()
