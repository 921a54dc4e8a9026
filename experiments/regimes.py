"""The five regimes of RegimeAbstain: our table from score files, the published figures beside it.

    python -m experiments.regimes --scores=DIR --out=runs/regimes

DIR holds REGIME.jsonl (abstain examples, see docs/abstention.md) for some of the regimes below. The
published ones used NV-Embed-v2 and a 70B judge: write their scores with your own retriever, or run
ours (`launch.abstain --dataset ... --architecture ...`) for the same protocol with small models.
"""

from pathlib import Path
from typing import Any, NamedTuple

from absl import app, flags

from calibjax import storage
from calibjax.abstention.examples import load_examples
from calibjax.abstention.fitting import Settings, fit_regime
from calibjax.abstention.resampling import NUM_BINS
from calibjax.abstention.study import judge_regime
from calibjax.report.abstention import write_abstention_report
from calibjax.report.tables import markdown_grid, number

SCORES = flags.DEFINE_string("scores", None, "Directory of REGIME.jsonl files.", required=True)
OUT = flags.DEFINE_string("out", "runs/regimes", "Directory of the report.")
REPLICATES = flags.DEFINE_integer("replicates", 2000, "Bootstrap replicates.", lower_bound=1)
TARGET = flags.DEFINE_float("target", 0.25, "Share of failures to keep below.")


class Published(NamedTuple):
    """How a regime was set up, and its AUC-AC by signal.

    success: full-success rate, which is the expectation of a random order; the published random
    rows (.576, .366, .841) are single draws around it.
    """

    dataset: str
    architecture: str
    n_tune: int | None
    n_test: int | None
    success: float
    auc_ac: dict[str, float]


REGIMES = {
    "musique_judge": Published(
        *("musique", "judge", 486, 514, 0.605),
        {
            "rcs": 0.790,
            "lift": 0.776,
            "temp_scaled": 0.774,
            "max_score": 0.751,
            "entropy": 0.743,
        },
    ),
    "2wiki_judge": Published(
        *("2wiki", "judge", 509, 491, 0.855),
        {"rcs": 0.947, "query_len_inv": 0.947, "entropy": 0.849},
    ),
    "musique_dense": Published("musique", "dense", None, None, 0.379, {"rcs": 0.556}),
    "2wiki_dense": Published("2wiki", "dense", None, None, 0.417, {"rcs": 0.649, "mlp": 0.643}),
    # Supported claims only.
    "hover_dense": Published("hover", "dense", 1007, 993, 0.683, {"mlp": 0.878, "rcs": 0.873}),
}


def published_table(report: dict[str, Any]) -> str:
    """Ours and the published AUC-AC, signal by signal, with the gain over the success rate."""
    rows = []
    for name, regime in report["regimes"].items():
        known = REGIMES[name]
        for signal, area in known.auc_ac.items():
            ours = regime["signals"][signal]
            estimate = ours["auc_ac"]["estimate"]
            above = [estimate - regime["base"]["success_rate"], area - known.success]
            shown = [estimate, area, *above]
            rows.append([name, signal, *map(number, shown)])
    heads = ["Signal", "AUC-AC", "published", "above random", "published"]
    return markdown_grid(["Regime", *heads], rows)


def main(argv: list[str]) -> None:
    settings = Settings(replicates=REPLICATES.value, target=TARGET.value)
    files = {name: Path(SCORES.value) / f"{name}.jsonl" for name in REGIMES}
    found = {name: path for name, path in files.items() if path.is_file()}
    if not found:
        raise app.UsageError(f"{SCORES.value}: none of {', '.join(p.name for p in files.values())}")
    fitted = {
        name: fit_regime(load_examples(path).examples, settings, name)
        for name, path in found.items()
    }
    parts = {
        name: judge_regime(
            regime, settings, {other: r.rcs for other, r in fitted.items() if other != name}
        )
        for name, regime in fitted.items()
    }
    report = {"regimes": parts, "settings": {**settings._asdict(), "num_bins": NUM_BINS}}
    out = Path(OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    table = published_table(report)
    write_abstention_report(out, report, title="Five regimes", notes=[table])
    storage.write_text(out / "published.md", table)
    print(table)


if __name__ == "__main__":
    app.run(main)
