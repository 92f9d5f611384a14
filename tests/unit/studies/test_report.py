"""Reports open from disk, stay small, escape what models write, and survive whatever a run left behind."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from synthetic_runs import edit, edited

from rlhf_lab.core.errors import DataError
from rlhf_lab.reports.report import write_report
from rlhf_lab.reports.run.samples import BUDGET_BYTES
from rlhf_lab.results.rundir import read_run
from rlhf_lab.results.samples import pack, pick_samples

SCRIPTS = 450_000
"""Bytes of a page that draw its figures."""
ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028"


class Tags(HTMLParser):
    """Collects tags, script contents and visible text, and fails on a tag that is not closed."""

    void = frozenset({"meta", "input", "br", "img", "link"})

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.words.append(data)


def text(page: Path) -> str:
    return " ".join(" ".join(Tags(page.read_text()).words).split())


def test_a_run_report_shows_numbers_figures_samples_and_origin(make_run):
    page = write_report(make_run(prompts=64, samples=4))
    words = text(page)
    for part in ("Signs of reward hacking", "Reward gained against distance", "Samples side by side", "Origin"):
        assert part in words
    assert "over-optimisation : yes" in words  # gold of the synthetic run falls while its proxy rises
    assert "256 / 64" in words and "40 empty reply" in words and "aa11bb22cc33" in words
    assert "64 of 64 prompts are embedded" in words


@pytest.mark.slow
def test_reports_load_nothing_from_elsewhere(make_run, make_study):
    for directory in (make_run(), make_study(seeds=2)):
        page = write_report(directory).read_text()
        assert not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\((?!#)""", page)


def test_reports_and_comparisons_import_no_torch(make_run, make_study, tmp_path):
    run, study = make_run(), make_study(seeds=2)
    (run / "monitor.jsonl").write_text('{"iteration": 0, "prompt": [0, 1], "tokens": [9, 9], "reward": [1.0, 2.0]}\n')
    commands = [
        ["report", run],
        ["report", study],
        ["monitor", run],
        ["compare", run, make_run("other", seed=1), f"to={tmp_path / 'page'}"],
    ]
    code = (
        "import sys\n"
        "from rlhf_lab.cli.table import COMMANDS\n"
        f"for name, *words in {[list(map(str, command)) for command in commands]!r}:\n"
        "    COMMANDS[name](words)\n"
        "    assert 'torch' not in sys.modules, name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (run / "report.html").is_file() and (study / "report.html").is_file()


def test_an_evaluation_beyond_the_budget_says_how_much_it_shows(make_run):
    run = read_run(make_run(prompts=200))
    samples = pick_samples(run, budget=20_000)
    assert 5 < len(samples["prompts"]) < samples["total"] == 200
    assert len(pack(samples["prompts"])) <= 21_000
    assert {"regular", "hacked"} == {entry["why"] for entry in samples["prompts"]}
    every = pick_samples(run, budget=BUDGET_BYTES)["prompts"]
    assert len({entry["id"] for entry in every}) == len(every) == 200


def test_sample_text_cannot_leave_its_place(make_run):
    directory = make_run(prompts=4)
    for name in ("evaluation.jsonl", "result.json", "manifest.json", "config.yaml"):
        file = directory / name
        file.write_text(file.read_text().replace("Take the train", "Take " + json.dumps(ATTACK)[1:-1]))
    (directory / "config.yaml").write_text(f"note: {ATTACK}\n")
    edit(directory / "result.json", status="failed", error=ATTACK)
    page = write_report(directory)
    tags = Tags(page.read_text())
    scripts = re.findall(r"<script([^>]*)>", page.read_text())
    figures = page.read_text().count('<div class="chart"')
    # the samples' data and script, those of the figures, and the data of each figure
    assert len(scripts) == tags.tags.count("script") == 4 + figures and "img" not in tags.tags
    assert "alert(1)" in text(page)  # shown as text
    data = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert data is not None and not set("<>&\u2028") & set(data[1])
    response = json.loads(data[1])["prompts"][0]["replies"][0][0]["text"]
    assert ATTACK.strip("\u2028") in response


def test_policy_and_metric_names_are_escaped_in_figures(make_run):
    page = write_report(make_run(policies=("SFT", "<u>bold</u>")))
    assert "u" not in Tags(page.read_text()).tags
    assert page.read_text().count("&lt;u&gt;bold") >= 5  # tables, lights and static figures
    assert "\\u003cu\\u003ebold" in page.read_text()  # the data of figures


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_an_unfinished_run_shows_what_it_left(make_run, status):
    directory = make_run(
        status=status, error="NumericError: the loss is NaN" if status == "failed" else None, truncated=True
    )
    words = text(write_report(directory))
    assert status in words and "cut off" in words and "Training" in words
    assert ("the loss is NaN" in words) == (status == "failed")


@pytest.mark.parametrize(
    "missing", [["result.json"], ["evaluation.jsonl"], ["metrics.jsonl", "config.yaml"], ["manifest.json"]]
)
def test_any_file_may_be_missing(make_run, missing):
    directory = make_run()
    for name in missing:
        (directory / name).unlink()
    words = text(write_report(directory))
    assert "Policies" in words
    if "result.json" in missing:
        assert "unfinished" in words and "result.json is missing" in words
    if "evaluation.jsonl" in missing:
        assert "Samples side by side" not in words and "Gain over SFT" in words


def test_a_stored_mean_that_its_samples_contradict_is_pointed_out(make_run):
    directory = make_run()
    with edited(directory / "result.json") as result:
        result["policies"][1]["metrics"]["proxy"] |= {"mean": 5.0, "low": 4.0, "high": 6.0}
    assert "one-pass DPO, proxy reward: mean 5 does not match its 60 rows" in text(write_report(directory))


def test_a_study_report_opens_with_its_finding(make_study):
    directory = make_study(failed=(5,), missing=(11,))
    # a job names its run
    assert write_report(directory / "jobs/0") == directory / "jobs/0/run/report.html"
    page = write_report(directory)
    words = text(page)
    assert words.index("The difference from it is") < words.index("proxy reward exploratory")
    assert "hypothesis" in words and "the loss is NaN at step 40" in words and "not run" in words
    assert 'href="jobs/0/run/report.html"' in page.read_text()
    assert {"table.md", "table.csv", "plot.svg", "plot.png", "report.html"} <= {
        file.name for file in directory.iterdir()
    }
    assert page.stat().st_size <= SCRIPTS + 250_000
    assert ElementTree.parse(directory / "plot.svg").getroot().tag.endswith("svg")


def test_other_folders_are_refused_with_directions(make_run, tmp_path):
    run = make_run("somewhere/deep/run")
    for wrong in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError, match=r"Nearby: .*deep/run") as caught:
            write_report(wrong)
        assert str(run) in str(caught.value)
    empty = tmp_path / "somewhere/empty"
    empty.mkdir()
    with pytest.raises(DataError, match=r"neither a run .* nor a study"):
        write_report(empty)


def test_notes_of_a_run_stand_on_its_page(make_run):
    directory = make_run()
    edit(directory / "result.json", notes=["DPO equals SFT: KL 2e-05 <nats>"])
    words = text(write_report(directory))
    assert "Notes of the run DPO equals SFT: KL 2e-05 <nats>" in words
