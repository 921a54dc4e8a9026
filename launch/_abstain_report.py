"""What `launch.abstain` does with its examples: fit and judge, or apply a stored score; writing."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from calibjax import storage
from calibjax.abstention import RCS
from calibjax.abstention.deciding import applied
from calibjax.abstention.examples import column, example_features
from calibjax.abstention.fitting import Regime, Settings, fit_regime
from calibjax.abstention.policy import decide
from calibjax.abstention.resampling import NUM_BINS
from calibjax.abstention.score_features import QUERY_LEN
from calibjax.abstention.splits import TEST, TUNE
from calibjax.abstention.study import judge_regime
from calibjax.errors import InputError, input_error
from calibjax.reading import textfiles
from launch._abstain_inputs import Source


def study(
    out: Any, sources: Sequence[Source], fitted_on: Sequence[Source], settings: Settings
) -> None:
    """Fits and judges every regime; several of them are applied to one another."""
    with out.stage("fit"):
        regimes = {s.name: fit_regime(s.examples, settings, s.name) for s in sources}
        elsewhere = {s.name: fit_regime(s.examples, settings, s.name).rcs for s in fitted_on}
    own = {name: regime.rcs for name, regime in regimes.items()}
    parts: dict[str, Any] = {}
    with out.stage("figures"):
        for source in sources:
            foreign = {k: rcs for k, rcs in own.items() if k != source.name} | elsewhere
            parts[source.name] = judge_regime(regimes[source.name], settings, foreign)
            parts[source.name]["rows"] |= source.counts
    report: dict[str, Any] = {"settings": {**settings._asdict(), "num_bins": NUM_BINS}}
    if len(parts) == 1:
        report = {"name": sources[0].name, **parts[sources[0].name], **report}
    else:
        transfer = {
            fitted: {tested: _transferred(parts, fitted, tested) for tested in parts}
            for fitted in parts
        }
        report = {"regimes": parts, "transfer": transfer, **report}
    with out.stage("report"):
        _write(out, report, parts, regimes, settings, _notes(out, sources))


def _transferred(parts: dict[str, Any], fitted: str, tested: str) -> dict[str, Any]:
    cell = parts[tested]["signals"]["rcs"]
    if fitted != tested:
        cell = parts[tested]["transfer"][fitted]
    return {"auc_ac": cell["auc_ac"], "gain": cell["gain"]}


def _write(
    out: Any,
    report: dict[str, Any],
    parts: dict[str, Any],
    regimes: dict[str, Regime],
    settings: Settings,
    notes: list[str],
) -> None:
    from calibjax.report.abstention import signal_table, summary_table, write_abstention_report

    single = len(regimes) == 1
    for name, regime in regimes.items():
        suffix = "" if single else f".{name.replace('/', '_')}"
        taus = {rule: cell["tau"] for rule, cell in parts[name]["thresholds"].items()}
        certified = {"certified": taus.pop("certified")}
        regime.rcs.save(out.path / f"rcs{suffix}.json", thresholds=taus)
        regime.honest.save(out.path / f"rcs_certified{suffix}.json", thresholds=certified)
    rows = [
        row
        for name, regime in regimes.items()
        for row in _decisions(name, regime, parts[name]["thresholds"]["suffix"]["tau"], settings)
    ]
    storage.write_jsonl(out.path / "decisions.jsonl", rows)
    report["seconds"] = out.seconds
    write_abstention_report(out.path, report, notes=notes)
    print(signal_table(report) if single else summary_table(report))
    rejected = f", {out.n_rejected} rows rejected, see rejected.jsonl" if out.n_rejected else ""
    total = sum(len(regime.examples) for regime in regimes.values())
    print(f"{total} questions{rejected}; see {out.path / 'report.md'}")


def _decisions(
    name: str, regime: Regime, tau: float, settings: Settings
) -> Iterator[dict[str, Any]]:
    """Every question with its confidence, all signals, and the decision by the suffix rule."""
    confidence = regime.rcs.score(regime.features)
    decisions = decide(confidence, tau, below=settings.below)
    for place, example in enumerate(regime.examples):
        yield {
            "regime": name,
            "id": example.id,
            "split": TUNE if regime.tune[place] else TEST,
            "success": example.success,
            "confidence": confidence[place],
            "decision": str(decisions[place]),
            "signals": {key: signal.score[place] for key, signal in regime.signals.items()},
        }


def apply(out: Any, sources: Sequence[Source], path: str, tau: float | None, below: str) -> None:
    """Confidence and decision of every example by a stored RCS; figures where success is known."""
    rcs = RCS.load(path, name="apply")
    rule, tau = ("given", tau) if tau is not None else _stored_threshold(path)
    rows: list[dict[str, Any]] = []
    report: dict[str, Any] = {"rcs": rcs.as_dict(), "rule": rule, "tau": tau, "applied": {}}
    for source in sources:
        _check_questions(rcs, source, path)
        try:
            confidence = rcs.score(example_features(source.examples))
        except InputError as error:
            raise InputError(f"examples={source.name}: {error}") from None
        decisions = decide(confidence, tau, below=below)
        counts = {str(d): int((decisions == d).sum()) for d in np.unique(decisions)}
        cell: dict[str, Any] = {"n": len(confidence), "decisions": counts}
        success = column(source.examples, lambda example: example.success)
        if not np.isnan(success).any():
            cell |= applied(confidence, success, tau)
        report["applied"][source.name] = cell
        rows += [
            {"regime": source.name, "id": example.id, "confidence": c, "decision": str(d)}
            for example, c, d in zip(source.examples, confidence, decisions)
        ]
    storage.write_jsonl(out.path / "decisions.jsonl", rows)
    lines = [f"# Decisions at tau = {tau:.4f} ({rule})\n"]
    lines += [f"{note}\n" for note in _notes(out, sources)]
    for name, cell in report["applied"].items():
        shown = ", ".join(f"{decision} {count}" for decision, count in cell["decisions"].items())
        known = cell.get("test")
        rate = f"; {known:.3f} of the answered lack evidence" if known is not None else ""
        lines.append(f"- {name}: {shown}{rate}")
    storage.write_text(out.path / "report.md", "\n".join(lines) + "\n")
    storage.write_json(out.path / "report.json", report)
    print("\n".join(lines[1:]))


def _notes(out: Any, sources: Sequence[Source]) -> list[str]:
    return [*out.cut_notes, *(note for source in sources for note in source.notes)]


def _check_questions(rcs: RCS, source: Source, path: str) -> None:
    """InputError for a row without the question whose length the score wants."""
    lacking = [example.id for example in source.examples if example.question is None]
    if QUERY_LEN in rcs.names and lacking:
        count = f"{len(lacking)} of {len(source.examples)} rows lack it, such as id={lacking[0]}"
        raise InputError(
            f"examples={source.name}: question: needed for {QUERY_LEN} in {path}, but {count};"
            " fix: add the question to every row"
        )


def _stored_threshold(path: str) -> tuple[str, float]:
    """The file's certified threshold, else its suffix one; null means abstain on everything."""
    stored = textfiles.read_json(path, name="apply").get("thresholds", {})
    for rule in ("certified", "suffix"):
        if rule in stored:
            return rule, float("inf") if stored[rule] is None else float(stored[rule])
    raise input_error("apply", path, "a file with thresholds", "--tau=X")
