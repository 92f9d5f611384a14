"""Passages are found by BM25 as written, tables are read and nothing else, and every mistake says what to do."""

from __future__ import annotations

import math

import pytest

from rlhf_lab.core.tools import ToolError, call_tool
from rlhf_lab.packs.agents.tools.retrieval import PassageIndex, retrieval_tool
from rlhf_lab.packs.agents.tools.table import MOST_ROWS, DataTable, TableBase, table_tools

PASSAGES = {"Tower": "The tower is old.", "Bridge": "The bridge is long and the bridge is old.", "Mill": "A mill."}
LAKE_ROWS = [["Orlun", 41], ["Vess", 12.5], ["Tamm", None]]
LAKES = TableBase({"lakes": DataTable(columns=["name", "depth_m"], rows=LAKE_ROWS)})


def test_bm25_on_the_page():
    # titles count as words: lengths 5, 10, 3, mean 6. "tower" stands in 1 of 3 passages, twice in Tower:
    # idf = ln(1 + 2.5/1.5) = ln(8/3), discount = 1.2·(.25 + .75·5/6) = 1.05, score = ln(8/3)·2/3.05
    [(title, score)] = PassageIndex(PASSAGES).find("TOWER?")
    assert title == "Tower"
    assert score == pytest.approx(math.log(8 / 3) * 2 / 3.05, rel=1e-12)


def test_the_best_passage_comes_first_and_ties_keep_their_order():
    index = PassageIndex({**PASSAGES, "Second tower": "The tower is old."})
    assert index.retrieve("bridge old").startswith("Bridge: ")
    equal = PassageIndex({"B": "same words", "A": "same words"})
    assert [title for title, _ in equal.find("words same")] == ["B", "A"]
    assert len(index.find("the tower is old", top=2)) == 2


def test_a_query_that_finds_nothing_says_so():
    index = PassageIndex(PASSAGES)
    with pytest.raises(ToolError, match="no passage has any word of 'harbour'"):
        index.retrieve("harbour")
    with pytest.raises(ToolError, match="no words; write what to look for"):
        index.retrieve(" ?! ")
    call = call_tool({"retrieve": retrieval_tool(index)}, "retrieve", {"query": "mill"})
    assert (call.result, call.failed) == ("Mill: A mill.", False)


def test_what_a_query_shows():
    tools = {tool.name: tool for tool in table_tools(LAKES)}
    assert call_tool(tools, "schema", {}).result == LAKES.schema() == "lakes(name, depth_m): 3 rows"
    assert call_tool(tools, "sql", {"statement": "DELETE FROM lakes"}).failed
    assert LAKES.query("SELECT * FROM lakes") == "name | depth_m\nOrlun | 41\nVess | 12.5\nTamm | NULL"
    assert LAKES.query("select max(depth_m) AS deepest from Lakes where name LIKE 'o%';") == "deepest\n41"
    assert LAKES.query("SELECT name FROM lakes WHERE depth_m > 99") == "no rows"
    assert LAKES.query("WITH deep AS (SELECT * FROM lakes WHERE depth_m > 20) SELECT count(*) FROM deep") == (
        "count(*)\n1"
    )


def test_rows_are_bounded():
    many = TableBase({"numbers": DataTable(columns=["n"], rows=[[n] for n in range(100)])})
    lines = many.query("SELECT n FROM numbers").split("\n")
    assert lines[-1] == f"(only the first {MOST_ROWS} rows; add a condition or a LIMIT)"
    assert len(lines) == MOST_ROWS + 2


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM lakes",
        "DROP TABLE lakes",
        "CREATE TABLE more (n)",
        "INSERT INTO lakes VALUES ('x', 1)",
        "ATTACH '/etc/passwd' AS other",
        "PRAGMA table_info(lakes)",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('x')",
        "SELECT hex(zeroblob(1000000000))",
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT sum(n) FROM c",
        "BEGIN",
    ],
)
def test_nothing_but_reading_these_tables_is_allowed(statement):
    with pytest.raises(ToolError, match="only SELECT from lakes is allowed here"):
        LAKES.query(statement)
    assert LAKES.query("SELECT count(*) FROM lakes") == "count(*)\n3"


def test_a_wrong_query_says_what_is_wrong():
    for statement, message in {
        "SELECT depth FROM lakes": "SQL error: no such column: depth",
        "SELECT * FROM seas": "SQL error: no such table: seas",
        "SELECT 1; SELECT 2": "one statement at a time",
        "lakes?": "syntax error",
        "": "only SELECT is allowed here",
    }.items():
        with pytest.raises(ToolError, match=message):
            LAKES.query(statement)


def test_a_query_that_would_take_for_ever_ends():
    product = ", ".join(f"lakes AS l{number}" for number in range(20))
    with pytest.raises(ToolError, match="took too long; ask for less"):
        LAKES.query(f"SELECT count(*) FROM {product}")
