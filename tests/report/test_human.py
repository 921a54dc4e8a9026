"""Agreement of a human and the surrogate user, from a two-column file."""

import json

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from calibjax.errors import InputError
from calibjax.report.human import load, summarise_agreement, with_confidence

# All summaries below are of 40 rows and 100 replicates, so that one program serves them.
N, FEW = 40, 100


def _write(tmp_path, text):
    path = tmp_path / "human.csv"
    path.write_text(text)
    return path


def test_two_columns_of_any_name_will_do(tmp_path):
    found = load(_write(tmp_path, "annotator,llm\nyes,Yes\nno, no \n1,0\n"))
    assert found.human.tolist() == ["yes", "no", "1"]
    assert found.user.tolist() == ["yes", "no", "0"]
    assert np.isnan(found.confidence).all()


def test_json_verdicts_of_other_types_are_compared_as_text(tmp_path):
    path = tmp_path / "human.jsonl"
    rows = [{"human": True, "user": 1, "id": 7}, {"human": 0.5, "user": "0.5", "confidence": 0.25}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load(path)
    assert (found.human == found.user).all()
    assert found.ids.tolist() == ["7", ""]
    filled = with_confidence(found, {"7": 0.75, "8": 1.0})
    assert filled.confidence.tolist() == [0.75, 0.25]


def test_a_missing_verdict_costs_its_row_and_other_columns_are_named(tmp_path):
    found = load(_write(tmp_path, "human,user\nyes,yes\nno,\nno,no\n"))
    assert len(found.human) == 2
    assert [(row.line, row.reason) for row in found.rejected] == [
        (3, 'user="": expected a verdict')
    ]
    with pytest.raises(InputError, match="found a, b, c; fix: --rename=YOUR_NAME:human"):
        load(_write(tmp_path, "a,b,c\n1,2,3\n"))


def test_rate_and_kappa_equal_scikit_learns_overall_and_by_bin(tmp_path):
    rng = np.random.default_rng(0)
    human = rng.integers(0, 3, N)
    user = np.where(rng.random(N) < 0.7, human, rng.integers(0, 3, N))
    confidence = rng.random(N).round(2)
    rows = [f"{h},{u},{c}" for h, u, c in zip(human, user, confidence)]
    path = _write(tmp_path, "\n".join(["human,user,confidence", *rows]) + "\n")
    report = summarise_agreement(load(path), replicates=FEW)
    assert report["n"] == N
    assert report["rate"]["estimate"] == pytest.approx((human == user).mean())
    assert report["kappa"]["estimate"] == pytest.approx(cohen_kappa_score(human, user))
    assert report["kappa"]["low"] < report["kappa"]["estimate"] < report["kappa"]["high"]
    edges = np.searchsorted([0.2, 0.4, 0.6, 0.8], confidence, side="left")
    assert [row["n"] for row in report["bins"]] == np.bincount(edges, minlength=5).tolist()
    for place, row in enumerate(report["bins"]):
        inside = edges == place
        expected = cohen_kappa_score(human[inside], user[inside])
        assert row["kappa"]["estimate"] == pytest.approx(expected)
    assert report["bins"][1]["confidence"] == "0.2 to 0.4"


def test_without_confidence_there_are_no_bins_and_a_reason(tmp_path):
    rows = ["human,user", *["yes,yes"] * N]
    report = summarise_agreement(load(_write(tmp_path, "\n".join(rows))), replicates=FEW)
    assert report["bins"] == [] and "no confidence" in report["reason"]
    assert report["rate"]["estimate"] == report["rate"]["low"] == 1
    # Both always say the same one thing: chance agreement is 1.
    assert report["kappa"]["estimate"] is None and report["kappa"]["reason"]
