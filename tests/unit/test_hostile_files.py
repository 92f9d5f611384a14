"""Damaged and hostile files end in loaded data or in a LabError, never in another error, and within a memory bound."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tracemalloc

import numpy as np
import pytest
from support import llama_tokenizer, save_tiny

from rlhf_lab.config import user_files
from rlhf_lab.config.compose import compose
from rlhf_lab.core import bounded_files, files, yaml_files
from rlhf_lab.core.bounded_files import MIB
from rlhf_lab.core.errors import ArtifactError, ConfigError, DataError, LabError
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import BadRows
from rlhf_lab.data.text_files import read_json_file
from rlhf_lab.models.build import load_policy
from rlhf_lab.models.model_files import read_header, reading_weights
from rlhf_lab.models.settings import HuggingFace

LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
CHAIN = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 300))
HOSTILE_YAML = {
    "tag": ("a: !!python/object/apply:os.system ['true']", "line 1: the tag !!python"),
    "self-anchor": ("a: &a [*a]", "is inside the value that it names"),
    "depth": ("a: " + "[" * 10_000, "nested more than 32 levels"),
    "depth of aliases": (CHAIN, "nested more than 32 levels"),
    "digits": ("a: " + "9" * 100_000, "a number has 100000 characters"),
    "base 60": ("a: 1" + ":1" * 50_000, "a number has 100001 characters"),
    "UTF-16": ("a: 1".encode("utf-16"), "is UTF-16; convert it"),
    "no UTF-8": (b"a: 1\nb: \xe9", "line 2: byte 0xe9 is not UTF-8"),
    "NUL": ("a: b\0", "control characters"),
    "laughs": (LAUGHS, "more than 100000 values"),
    "long text": ("a: &a " + "x" * 100_000 + "\nb: [" + "*a," * 1000 + "]", "more than 100000 values"),
    "duplicate key": ("a: 1\na: 2", "line 2: the key 'a' is repeated"),
    "a list as a key": ("? [1]\n: 2", "used as a key"),
    "no such anchor": ("a: *b", "names no earlier value"),
    "two documents": ("a: 1\n---\nb: 2", "line 2: a second document"),
    "a list": ("- a", "holds a list at its top level; expected settings"),
    "size": ("a: 1\n" + "#" * MIB, "has more than 1 MiB"),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE_YAML.values(), ids=HOSTILE_YAML)
def test_hostile_yaml_is_refused_by_one_message(tmp_path, content, message):
    file = tmp_path / "x.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as refused:
        yaml_files.read_mapping(file, "settings")
    assert message in str(refused.value) and str(file) in str(refused.value)


def test_yaml_reads_numbers_dates_and_merges_as_hydra_does():
    text = "a: 1e-3\nb: 2024-01-01\nc: &c {x: 1, y: 2}\nd: {<<: *c, y: 3}\ne: 'no'\nf: no\ng: 0x10\nh:\n"
    expected = {"a": 1e-3, "b": "2024-01-01", "c": {"x": 1, "y": 2}, "d": {"x": 1, "y": 3}}
    assert yaml_files.parse_yaml(text, "x") == {**expected, "e": "no", "f": False, "g": 16, "h": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: [../../../../etc/x]", "outside this directory"),
        ("defaults: [/recipe/mine]", "in a circle"),
        ("defaults: 5", "defaults=5 is not a list"),
        ("defaults: [{a: 1, b: 2}]", "entry 1 of defaults"),
        ("on: 1", "the key True is read as a value"),
        ("question: ${", "mine.yaml: no viable alternative"),
        ("question: ${k0}\n" + "".join(f"k{i}: ${{k{i + 1}}}${{k{i + 1}}}\n" for i in range(30)) + "k30: x", "1000"),
        ("a: &a [*a]", "is inside the value that it names"),
    ],
)
def test_a_recipe_of_ones_own_that_is_hostile(tmp_path, text, message):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    with pytest.raises(ConfigError, match=message):
        compose(["+recipe=mine"], str(tmp_path))


def test_few_interpolations_are_replaced(tmp_path, monkeypatch):
    (tmp_path / "recipe").mkdir()
    recipe = tmp_path / "recipe" / "mine.yaml"
    recipe.write_text("# @package _global_\nquestion: ${outputs} ${outputs}\noutputs: x\n")
    assert compose(["+recipe=mine"], str(tmp_path))["question"] == "x x"
    monkeypatch.setattr(user_files, "MAX_INTERPOLATIONS", 0)
    with pytest.raises(ConfigError, match="more than 0 replacements"):
        compose(["+recipe=mine"], str(tmp_path))


def load(path):
    bad = BadRows(str(path), 0)
    rows = list(read_rows(str(path), bad))
    bad.finish()
    return rows


@pytest.fixture
def small_bounds(monkeypatch):
    """Bounds of a few hundred kB, so that breaking them is quick."""
    monkeypatch.setattr(bounded_files, "MAX_ROW_BYTES", 200_000)
    monkeypatch.setattr(bounded_files, "MAX_LIST_LENGTH", 200_000)
    monkeypatch.setattr(bounded_files, "MIN_GZIP_BOUND", 400_000)
    monkeypatch.setattr(bounded_files, "BLOCK_BYTES", 50_000)


LONG = "a" * 1_000_000
HOSTILE_DATA = {
    "long line": ("x.jsonl", json.dumps({"a": LONG}), "row 1: the line is longer than"),
    "long list": (
        "x.json",
        json.dumps([{"a": LONG}]),
        "the maximum for JSON that is parsed at once; convert it to JSON",
    ),
    "long field": ("x.csv", 'a,b\n"' + "x\n" * 500_000, "a field is longer than"),
    "newlines": ("x.jsonl.gz", gzip.compress(b"\n" * 5_000_000), "decompresses to more than"),
    "spaces": ("x.json.gz", gzip.compress(b"[" + b" " * 5_000_000), "the maximum for JSON that is parsed at once"),
    "depth": ("x.jsonl", '{"a":' * 500 + "1" + "}" * 500, "nested too deeply"),
    "digits": ("x.json", '[{"a": ' + "9" * 100_000 + "}]", "an integer of more than 4300 digits"),
    "cut off": ("x.json", '[{"a": 1},\n {"a": ', "broken JSON in line 2, column 8"),
    "more after the list": ("x.json", '[{"a": 1}] 2', "broken JSON in line 1, column 12 (Extra data)"),
    "no Parquet": ("x.parquet", "PAR1" + "x" * 100, "cannot be read as Parquet"),
}


@pytest.mark.parametrize(("name", "content", "message"), HOSTILE_DATA.values(), ids=HOSTILE_DATA)
def test_hostile_data_is_refused_within_bounds(tmp_path, small_bounds, name, content, message):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as refused:
            load(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert message in str(refused.value) and str(file) in str(refused.value)
    assert peak < 8 * MIB


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "directory.yaml").mkdir()
    for name, message in {"pipe.yaml": "a pipe or device", "directory.yaml": "a directory"}.items():
        with pytest.raises(ConfigError, match=message):
            yaml_files.read_yaml(tmp_path / name)
        assert files.read_json(tmp_path / name) is None


def test_a_list_does_not_depend_on_where_blocks_end(tmp_path, monkeypatch):
    rows = [{"a": number, "b": 'é"\\[{' * (number % 7)} for number in range(50)]
    file = tmp_path / "x.json"
    file.write_text(json.dumps(rows, ensure_ascii=False, indent=1), encoding="utf-8")
    for block_bytes in (1, 3, 64, 10_000):
        monkeypatch.setattr(bounded_files, "BLOCK_BYTES", block_bytes)
        assert read_json_file(file) == rows


TENSORS = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
HEADER = json.dumps(TENSORS).encode()
VALID = {
    "x.yaml": b"a: &x {b: [1, 2.5e3, 'text'], c: true}\nd: *x\ne: {<<: *x, f: null}\n",
    "x.json": json.dumps([{"chosen": "\u00e4", "n": 1.5, "deep": {"a": [1, {"b": []}]}}] * 4).encode(),
    "x.jsonl": (json.dumps({"chosen": "a", "list": [1, 2, {"x": None}]}) + "\n").encode() * 4,
    "x.csv": b'chosen,rejected\n"a ""b""",c\n"[{""role"": ""user"", ""content"": ""x""}]",d\n',
    "x.jsonl.gz": gzip.compress(b'{"a": 1}\n' * 20, mtime=0),
    "x.safetensors": len(HEADER).to_bytes(8, "little") + HEADER + bytes(8),
}
READERS = {".yaml": yaml_files.read_yaml, ".safetensors": read_header}
PIECES = [b"[", b"{", b"]", b"}", b"\0", b"\xff", b"&a ", b"*a", b"!!x ", b"<<: ", b"\n", b'"', b":", b",", b"-"]
PIECES += [b"9" * 99, b"NaN", b"1e999", b"\\ud800", b"[" * 300, b"\xef\xbb\xbf", b"  ", b"'", b"\t", b"? "]


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """A file's bytes after one to four cuts, repeats, insertions and changed bytes."""
    for _ in range(rng.integers(1, 5)):
        first, last = sorted(rng.integers(0, len(content) + 1, 2))
        kind = rng.integers(4)
        if kind == 0:
            content = content[:first] + content[last:]
        elif kind == 1:
            content = content[:last] + content[first:last] * int(rng.integers(1, 5)) + content[last:]
        elif kind == 2:
            content = content[:first] + PIECES[rng.integers(len(PIECES))] + content[first:]
        elif content:
            position = min(first, len(content) - 1)
            content = content[:position] + bytes([rng.integers(256)]) + content[position + 1 :]
    return content


@pytest.mark.parametrize("name", VALID)
def test_damage_ends_in_data_or_in_an_error_of_the_lab(tmp_path, name):
    rng = np.random.default_rng(0)
    file = tmp_path / name
    read = READERS.get(file.suffix, load)
    outcomes = {"read": 0, "refused": 0}
    file.write_bytes(VALID[name])
    read(file)
    for _ in range(300):
        file.write_bytes(damaged(VALID[name], rng))
        try:
            read(file)
            outcomes["read"] += 1
        except LabError as error:
            assert str(file) in str(error)
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 0


class OutOfMemoryError(RuntimeError):
    """Stands for torch's error of this name."""


@pytest.mark.parametrize("error", [OSError("x"), RuntimeError("size mismatch")])
def test_errors_of_weight_files_name_the_model(error):
    message = "models/a: the files of this model are damaged or do not belong together"
    with pytest.raises(ArtifactError, match=message), reading_weights("models/a"):
        raise error


@pytest.mark.parametrize("error", [OutOfMemoryError("x"), ConfigError("y"), ArtifactError("z")])
def test_other_errors_while_weights_are_read_stay(error):
    with pytest.raises(type(error)) as raised, reading_weights("models/a"):
        raise error
    assert raised.value is error


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny") / "model"
    return save_tiny("llama", llama_tokenizer(["a text of words"]), directory)


def damage_shape(directory):
    """Change the config so that no tensor fits the model."""
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": config["intermediate_size"] * 2}))


def damage_length(directory):
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])


def damage_header(directory):
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:8] + b"[" * 64)


@pytest.mark.parametrize("damage", [damage_shape, damage_length, damage_header])
def test_a_damaged_model_is_one_message(tiny_model, tmp_path, damage):
    directory = tmp_path / "model"
    shutil.copytree(tiny_model, directory)
    damage(directory)
    with pytest.raises(ArtifactError) as refused:
        load_policy(directory, HuggingFace(path=str(directory)))
    assert str(directory) in str(refused.value) and "\n" not in str(refused.value)
