"""Plausible repairs of the debugging tasks that are wrong: what somebody would write who saw half of the problem."""

from __future__ import annotations

from typing import NamedTuple


class Wrong(NamedTuple):
    """A text of the task's `solution`, or of its buggy `program`, and what stands there instead."""

    of: str
    old: str
    new: str


WRONG_REPAIRS: dict[str, list[Wrong]] = {
    "count_words": [
        Wrong("program", "counts[word.lower()] += 1", "counts[word.lower()] = 1"),
        Wrong("program", "counts[word.lower()] += 1", "counts[word] = counts.get(word, 0) + 1"),
        Wrong("solution", "counts.get(word, 0)", "counts.get(word, 1)"),
    ],
    "read_prices": [
        Wrong("solution", 'if not line or line.startswith("#")', "if not line"),
        Wrong(
            "program",
            '        name, price = line.split(",")\n        prices[name] = float(price)',
            "        try:\n"
            '            name, price = line.split(",")\n'
            "            prices[name] = float(price)\n"
            "        except ValueError:\n"
            "            continue",
        ),
        Wrong("solution", "continue", "break"),
    ],
    "tree_depth": [
        Wrong("solution", "default=0", "default=1"),
        Wrong("program", "    return 1 +", '    if not node["children"]:\n        return 0\n    return 1 +'),
        Wrong("program", "return 1 + max(", "return 1 + sum("),
    ],
    "moving_average": [
        Wrong("solution", "len(values) - width + 1)", "len(values) - width)"),
        Wrong("program", "total += values[start + width - 1] -", "total += sum(values[start + width - 1 :]) -"),
        Wrong("solution", "- values[start - 1]", "- values[start]"),
    ],
    "median": [
        Wrong("solution", "ordered[middle - 1] + ordered[middle]", "ordered[middle] + ordered[middle + 1]"),
        Wrong("solution", "(ordered[middle - 1] + ordered[middle]) / 2", "ordered[middle - 1]"),
        Wrong("solution", "ordered = sorted(values)", "values.sort()\n    ordered = values"),
        Wrong("solution", "]) / 2", "]) // 2"),
    ],
    "split_bill": [
        Wrong("program", "[share] * people", "[cents - share * (people - 1)] + [share] * (people - 1)"),
        Wrong(
            "solution",
            "[share + 1] * left_over + [share] * (people - left_over)",
            "[share] * (people - left_over) + [share + 1] * left_over",
        ),
        Wrong("program", "[share] * people", "[cents / people] * people"),
    ],
    "compare_versions": [
        Wrong("solution", "first += [0] * (length - len(first))", "pass"),
        Wrong("solution", "int(part)", "part"),
        Wrong("program", 'a.split("."), b.split(".")', "float(a[:3]), float(b[:3])"),
    ],
    "ranks": [
        Wrong("solution", ", reverse=True", ""),
        Wrong(
            "solution",
            "[ordered.index(score) + 1 for score in scores]",
            "[sorted(range(len(scores)), key=lambda i: -scores[i]).index(i) + 1 for i in range(len(scores))]",
        ),
    ],
    "climb": [
        Wrong(  # counts without regard to order
            "solution",
            "    for height in range(1, steps + 1):\n"
            "        ways[height] = sum(ways[height - size] for size in sizes if size <= height)\n",
            "    for size in sizes:\n"
            "        for height in range(size, steps + 1):\n"
            "            ways[height] += ways[height - size]\n",
        ),
        Wrong(  # remembers the ways of other sizes, because the tests call it more than once
            "program",
            "def climb(steps, sizes):\n    if steps == 0:\n        return 1\n"
            "    return sum(climb(steps - size, sizes) for size in sizes if size <= steps)",
            "def climb(steps, sizes, known={0: 1}):\n    if steps not in known:\n"
            "        known[steps] = sum(climb(steps - size, sizes) for size in sizes if size <= steps)\n"
            "    return known[steps]",
        ),
        Wrong("solution", "if size <= height", "if size < height"),
    ],
    "evaluate": [
        Wrong("program", 'return [letter for letter in text if letter != " "]', "return text.split()"),
        Wrong(
            "program",
            'return [letter for letter in text if letter != " "]',
            'import re\n    return re.findall(r"\\d+|[-+*()]", text)',
        ),
        Wrong("solution", "term = product(left)", "term = factor(left)"),
        Wrong("solution", "value = product(left)\n    while", "value = factor(left)\n    while"),
    ],
    "build_order": [
        Wrong(  # takes all that are ready at once
            "solution",
            "        name = min(ready)\n        done.append(name)\n        del waiting[name]\n",
            "        for name in sorted(ready):\n            done.append(name)\n            del waiting[name]\n",
        ),
        Wrong("solution", "name = min(ready)", "name = ready[0]"),
        Wrong("solution", "[*needs, *sum(needs.values(), [])]", "needs"),
        Wrong("solution", 'raise ValueError("the names need each other")', "break"),
    ],
    "run_cache": [
        Wrong("solution", "cache[key] = cache.pop(key)", "pass"),
        Wrong("solution", "key not in cache and ", ""),
        Wrong("solution", "elif capacity:", "else:"),
        Wrong("solution", "            cache.pop(key, None)\n", ""),
    ],
}
