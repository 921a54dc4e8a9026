"""A report made by hand: three methods, two of them on the same outcomes."""

from calibjax.report import schema


def cell(estimate, low=None, high=None, **more):
    return {"estimate": estimate, "low": low, "high": high, **more}


def method(outcomes, **estimates):
    defaults = dict.fromkeys(schema.METRICS, 0.5) | estimates
    metrics = {
        name + suffix: cell(value, value - 0.01, value + 0.01)
        for name, value in defaults.items()
        for suffix in ("", schema.ANSWERED)
    }
    bins = [
        {
            "lower": b / 4,
            "upper": (b + 1) / 4,
            "count": count,
            "confidence": b / 4 + 0.1 if count else None,
            "accuracy": b / 4 + 0.2 if count else None,
            "accuracy_low": b / 4 if count else None,
            "accuracy_high": b / 4 + 0.25 if count else None,
        }
        for b, count in enumerate((40, 30, 0, 30))
    ]
    curve = {"coverage": [0.01, 0.5, 1.0], "accuracy": [1.0, 0.8, 0.6]}
    return {
        "n": 100,
        "n_answered": 98,
        "outcomes": outcomes,
        "metrics": metrics,
        "ece_null": {"mean": 0.03, "q95": 0.05},
        "curves": {"reliability": bins, "accuracy_coverage": curve},
    }


def report():
    methods = {
        "ours": method("ours", ece=0.02, brier=0.20, accuracy=0.60),
        "base_rate": method("ours", ece=0.05, brier=0.25, accuracy=0.60),
        "other": method("other", ece=0.01, brier=0.10, accuracy=0.55),
    }
    methods["base_rate"]["metrics"]["auroc"] = cell(None, reason="all confidences are equal")
    return {
        "methods": methods,
        "comparisons": {"ours-base_rate": {"ece": cell(-0.03, -0.05, -0.01)}},
        "across_outcomes": {"ours-other": {"accuracy": cell(0.05, -0.01, 0.11)}},
        "rows": {"n_kept": 298, "n_rejected": 2, "n_duplicates": 0},
        "settings": {
            "num_bins": 15,
            "num_mass_bins": 10,
            "replicates": 2000,
            "confidence_level": 0.95,
            "seed": 7,
            "cluster": "row",
        },
    }
