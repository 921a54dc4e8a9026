"""One list of metrics as functions of (score, y, weight, where), for tests that hold for all."""

import jax
import jax.numpy as jnp

from calibjax import metrics as m


def _calibration(fn=m.expected_calibration_error, **options):
    return lambda s, y, **rows: fn(s, y, **options, **rows)


def _frontier(kind):
    def value(s, y, **rows):
        without, with_evidence = y, 1 - s  # graded outcomes that belong to their row
        if kind == "exact":
            return m.exact_frontier(s, without, with_evidence, (0.0, 0.3, 0.5, 1.0), **rows)
        if kind == "oracle":
            return m.oracle_frontier(without, with_evidence, (0.3, 0.5), **rows)
        if kind == "random":
            return m.random_frontier(without, with_evidence, (0.3, 0.5), **rows)
        calibration = {f"calibration_{name}": column for name, column in rows.items()}
        out = m.deployable_frontier(
            s, s, without, with_evidence, (0.3, 0.5), rule=kind, **rows, **calibration
        )
        return jnp.stack([getattr(out, name).astype(jnp.float32) for name in out._fields])

    return value


# Functions of scores in [0, 1] and labels in {0, 1}; RANK ones see the order of scores only.
RANK = {
    "auroc": m.auroc,
    "auc_ac": m.area_under_accuracy_coverage,
    "auc_ac_trapz": _calibration(m.area_under_accuracy_coverage, area="trapz"),
    "gain": m.normalized_accuracy_coverage_gain,
    "augrc": lambda s, y, **rows: m.area_under_accuracy_coverage_details(s, y, **rows).augrc,
    "accuracy_at": lambda s, y, **rows: m.accuracy_at_coverage(s, y, (0.29, 0.7), **rows),
    "cwar_at": lambda s, y, **rows: m.cwar_at_coverage(s, y, 0.5, **rows),
    "cwar_first": lambda s, y, **rows: m.cwar_threshold(s, y, 0.3, rule="first", **rows).coverage,
    "cwar_suffix": lambda s, y, **rows: m.cwar_threshold(s, y, 0.3, **rows).coverage,
    "cwar_certified": lambda s, y, **rows: m.cwar_threshold(
        s, y, 0.6, rule="certified", n_min=3, delta=0.3, **rows
    ).coverage,
}
OTHER = {
    "ece": m.expected_calibration_error,
    "ece_l2": _calibration(norm="l2", num_bins=5),
    "ece_max_left": _calibration(norm="max", num_bins=5, closed="left"),
    "ece_top_label": _calibration(mode="top_label", num_bins=5),
    "ece_mass": _calibration(binning="mass", num_bins=4),
    "ece_debiased": lambda s, y, **rows: m.expected_calibration_error_details(
        s, y, num_bins=5, **rows
    ).debiased_l2_squared,
    "brier": m.brier_score,
    "brier_skill": m.brier_skill,
    "decomposition": lambda s, y, **rows: jnp.stack(m.brier_decomposition(s, y, **rows)),
    "log_loss": m.log_loss,
    "log_loss_skill": m.log_loss_skill,
    "accuracy": lambda s, y, **rows: m.accuracy(y, **rows),
    "cwar": lambda s, y, **rows: m.confident_wrong_answer_rate(s, y, 0.5, **rows).rate,
    "conformal": lambda s, y, **rows: m.conformal_threshold(s, alpha=0.3, **rows).threshold,
    "conformal_positives": lambda s, y, **rows: m.conformal_score_threshold(
        s, y, alpha=0.4, **rows
    ).tau,
    "conformal_negatives": lambda s, y, **rows: m.conformal_score_threshold(
        s, y, alpha=0.4, target="negatives", **rows
    ).tau,
    "budget_threshold": lambda s, y, **rows: m.budget_threshold(s, 5, **rows),
    "agreement": lambda s, y, **rows: jnp.stack(
        m.agreement(y, jnp.asarray(s > 0.5).astype(jnp.float32), **rows)[:2]
    ),
    "exact_frontier": _frontier("exact"),
    "oracle_frontier": _frontier("oracle"),
    "random_frontier": _frontier("random"),
    "deployable": _frontier("quantile"),
    "conservative": _frontier("dkw1"),
}
ALL = {**RANK, **OTHER}
N = 24  # one padded size, so that tests of one process share what is compiled


@jax.jit
def evaluate(score, y, weight, where):
    """All metrics of columns of length N."""
    return {name: fn(score, y, weight=weight, where=where) for name, fn in ALL.items()}
