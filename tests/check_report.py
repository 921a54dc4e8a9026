"""Recomputes the figures of a quickstart report from its own rows, without calibjax.

Usage: python tests/check_report.py runs/quickstart_smoke. Exit 1 and one line per disagreement.
"""

import json
import sys
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

# The report computes in float32; 15 bins of a few hundred rows stay well within this.
TOLERANCE = 2e-5
METHODS = {
    "calibrag",
    "calibrag_no_rerank",
    "calibrag_no_temperature",
    "base_rate",
    "retriever_logistic",
    "verbal_number",
    "p_true",
}


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def figures(rows: list[dict]) -> dict[str, float | None]:
    """The primary figures of one method's rows, in float64; None where they are undefined."""
    c = np.array([row["confidence"] for row in rows], float)
    y = np.array([row["correct"] if row["answered"] else 0 for row in rows], float)
    clipped = np.clip(c, 1e-7, 1 - 1e-7)
    edges = np.arange(1, 15) / 15
    bins = np.searchsorted(edges.astype(np.float32), c.astype(np.float32), side="left")
    gaps = np.bincount(bins, weights=y - c, minlength=15)
    return {
        "accuracy": y.mean(),
        "brier": np.mean((c - y) ** 2),
        "log_loss": -np.mean(y * np.log(clipped) + (1 - y) * np.log1p(-clipped)),
        "ece": np.abs(gaps).sum() / len(rows),
        "auroc": roc_auc_score(y, c) if 0 < y.mean() < 1 else None,
        "no_answer_rate": np.mean([not row["answered"] for row in rows]),
    }


def disagreements(name: str, rows: list[dict], metrics: dict) -> list[str]:
    found = []
    for metric, expected in figures(rows).items():
        stated = metrics[metric]["estimate"]
        same = stated is expected is None or (
            None not in (stated, expected) and abs(stated - expected) <= TOLERANCE
        )
        if not same:
            found.append(f"{name}.{metric}={stated}: expected {expected}")
    return found


def check(directory: Path) -> list[str]:
    report = json.loads((directory / "report.json").read_bytes())
    methods = report["methods"]
    found = [f"methods: missing {name}" for name in METHODS - methods.keys()]
    by_method: dict[str, list[dict]] = {}
    for row in read_rows(directory / "predictions.jsonl"):
        by_method.setdefault(row["method"], []).append(row)
    for name, rows in by_method.items():
        found += disagreements(name, rows, methods[name]["metrics"])
    hidden = read_rows(directory / "predictions_hidden.jsonl")
    found += disagreements("hidden", hidden, methods["calibrag"]["confidence_hidden"])
    for row in read_rows(directory / "predictions_by_temperature.jsonl"):
        by_method.setdefault((row["method"], repr(row["temperature"])), []).append(row)
    for (name, t), rows in ((k, v) for k, v in by_method.items() if isinstance(k, tuple)):
        found += disagreements(f"{name} at {t}", rows, methods[name]["by_temperature"][t])
    labels = report["labels"]
    if sum(labels["histogram"].values()) != labels["n"]:
        found.append("labels: the histogram does not sum to n")
    if not all(0 <= row["confidence"] <= 1 for row in read_rows(directory / "answers.jsonl")):
        found.append("answers: a confidence outside [0, 1]")
    wanted = ("report.md", "report.tex", "run.json", "reliability.png", "accuracy_coverage.png")
    found += [f"{name}: missing" for name in wanted if not (directory / name).exists()]
    if not report["seconds"]:
        found.append("seconds: missing")
    return found


if __name__ == "__main__":
    problems = check(Path(sys.argv[1]))
    print("\n".join(problems) or f"{sys.argv[1]}: every figure agrees with its rows")
    sys.exit(bool(problems))
