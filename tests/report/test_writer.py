"""A report directory: every file there, readable by others, nothing torn, nothing invented."""

import csv
import json
import re

import pytest

from calibjax import storage
from calibjax.report import writer
from tests.report.sample import cell, report


def test_all_files_are_written_and_report_json_comes_last(tmp_path):
    sample = report()
    sample["labels"] = {"mean": 0.2, "histogram": {"0.0": 8, "1.0": 2}}
    written = writer.write_report(tmp_path / "out", sample, pdf=True)
    plots = ["reliability", "accuracy_coverage", "metrics", "labels"]
    expected = [f"{name}.{kind}" for name in plots for kind in ("csv", "png", "pdf")]
    expected += ["report.md", "report.tex", "report.csv", "report.json"]
    assert [path.name for path in written] == expected
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(expected)
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == sample


def test_the_bins_beside_the_diagram_sum_to_n(tmp_path):
    writer.write_report(tmp_path, report())
    with open(tmp_path / "reliability.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["count"]) for row in rows if row["method"] == "ours") == 100
    assert [row["accuracy"] for row in rows if row["count"] == "0"] == [""] * 3


def test_undefined_values_are_null_and_explained(tmp_path):
    sample = report()
    sample["methods"]["ours"]["metrics"]["auc_ac"] = cell(float("nan"), reason="why not")
    writer.write_report(tmp_path, sample)
    text = (tmp_path / "report.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["methods"]["ours"]["metrics"]["auc_ac"]["estimate"] is None
    page = (tmp_path / "report.md").read_text()
    assert "- base_rate, AUROC: all confidences are equal" in page


def test_the_page_shows_its_pictures_and_both_kinds_of_difference(tmp_path):
    writer.write_report(tmp_path, report(), title="My run", notes=["A note."])
    page = (tmp_path / "report.md").read_text()
    assert page.startswith("# My run\n") and "\nA note.\n" in page
    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", page)
    assert pictures and all((tmp_path / picture).exists() for picture in pictures)
    parts = ("kept 298 of 300 rows", "same outcomes", "outcomes differ", "15 bins of equal width")
    for part in parts:
        assert part in page
    # Two rows of each method have no answer, so the published convention is shown as well.
    assert "Answered rows only" in page


def test_the_headline_gives_both_counts_when_methods_are_paired():
    sample = report()
    sample["rows"] |= {"n_by_method": {"ours": 100, "other": 98}, "n_common": 98}
    assert "over the 98 ids in common (ours 100, other 98)" in writer.headline(sample)
    sample["rows"] |= {"n_by_method": {"ours": 98, "other": 98}, "n_duplicates": 4}
    line = writer.headline(sample)
    assert "in common" not in line and "kept 298 of 304 rows; 4 exact copies" in line


def test_a_failed_write_leaves_no_report_json(tmp_path, monkeypatch):
    def fail(path, text):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(storage, "write_text", fail)
    with pytest.raises(OSError):
        writer.write_report(tmp_path, report())
    assert not (tmp_path / "report.json").exists()


def test_equal_reports_give_equal_files(tmp_path):
    one = writer.write_report(tmp_path / "1", report())
    two = writer.write_report(tmp_path / "2", report())
    for a, b in zip(one, two, strict=True):
        assert a.read_bytes() == b.read_bytes(), a.name
