"""Bad input: eager calls raise with value and row, traced calls return NaN, masks hide anything."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax import metrics as m
from calibjax.errors import InputError
from tests.metrics.registry import ALL, N, evaluate

GOOD = np.array([0.2, 0.9, 0.4], np.float32), np.array([0.0, 1.0, 1.0], np.float32)
# (score, y, weight) with one fault in row 1; the first only concerns metrics of probabilities.
FAULTS = {
    "score is NaN": ([0.2, np.nan, 0.4], GOOD[1], None),
    "label of 2": (GOOD[0], [0, 2, 1], None),
    "label is NaN": (GOOD[0], [0, np.nan, 1], None),
    "weight below 0": (*GOOD, [1, -1, 1]),
    "weight is infinite": (*GOOD, [1, np.inf, 1]),
}
# Metrics that do not look at the faulty column at all.
BLIND = {
    "score is NaN": {"accuracy", "agreement"},
    "label of 2": {"conformal", "budget_threshold", "agreement"},
    "label is NaN": {"conformal", "budget_threshold"},
}


@pytest.mark.parametrize(
    "name, fault", [(n, f) for n in ALL for f in FAULTS if n not in BLIND.get(f, ())]
)
def test_eager_calls_raise_and_name_the_row(name, fault):
    score, y, weight = (None if c is None else np.asarray(c, np.float32) for c in FAULTS[fault])
    with pytest.raises(InputError, match="row 1"):
        ALL[name](score, y, weight=weight)


@pytest.mark.parametrize("fault", FAULTS)
def test_traced_calls_return_nan(fault):
    columns = [np.ones(3) if column is None else column for column in FAULTS[fault]]
    padded = (np.resize(np.asarray(column, np.float32), N) for column in columns)
    values = evaluate(*padded, np.arange(N) < 3)
    for name in values.keys() - BLIND.get(fault, set()):
        # Flags such as `violated` among the fields of a frontier cannot be NaN.
        part = values[name][0] if name in ("deployable", "conservative") else values[name]
        assert np.isnan(part).all(), name


@pytest.mark.parametrize("value", [1.2, -0.1, np.inf])
def test_a_confidence_outside_0_and_1_is_named_with_its_row(value):
    with pytest.raises(ValueError, match=rf"confidence\[row 1\]={value}: expected .*\[0, 1\]"):
        m.expected_calibration_error([0.5, value], [1, 0])
    got = jax.jit(m.expected_calibration_error)(jnp.array([0.5, value]), jnp.array([1, 0]))
    assert np.isnan(got)


def test_hard_labels_are_needed_where_errors_are_counted():
    with pytest.raises(InputError, match="0 or 1"):
        m.cwar_threshold([0.5, 0.4], [0.5, 1], 0.3, rule="certified")
    with pytest.raises(InputError, match="0 or 1"):
        m.conformal_score_threshold([0.5, 0.4], [0.5, 1], alpha=0.1)


def test_lengths_shapes_and_kinds_are_checked():
    with pytest.raises(InputError, match=r"len\(correct\)=2: expected 3 rows"):
        m.auroc([0.1, 0.2, 0.3], [0, 1])
    with pytest.raises(InputError, match=r"len\(where\)"):
        m.auroc([0.1, 0.2], [0, 1], where=[True])
    with pytest.raises(InputError, match="one dimension"):
        m.auroc([[0.1, 0.2]], [[0, 1]])
    with pytest.raises(InputError, match="real numbers"):
        m.auroc(["a", "b"], [0, 1])
    with pytest.raises(InputError, match="real numbers"):
        m.brier_score([0.1, None], [0, 1])
    with pytest.raises(InputError, match=r"where\[row 0\]"):
        m.brier_score([0.1], [0], where=[2])


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: m.expected_calibration_error([0.5], [1], num_bins=0), "num_bins=0"),
        (lambda: m.expected_calibration_error([0.5], [1], num_bins=2.5), "num_bins=2.5"),
        (lambda: m.expected_calibration_error([0.5], [1], binning="equal"), "width or mass"),
        (lambda: m.expected_calibration_error([0.5], [1], closed="both"), "right or left"),
        (lambda: m.expected_calibration_error([0.5], [1], norm="l3"), "l1, l2 or max"),
        (lambda: m.expected_calibration_error([0.5], [1], mode="max"), "event or top_label"),
        (lambda: m.log_loss([0.5], [1], clip=0.6), "clip=0.6"),
        (lambda: m.area_under_accuracy_coverage([0.5], [1], area="sum"), "mean or trapz"),
        (lambda: m.accuracy_at_coverage([0.5], [1], 1.5), "coverage=1.5"),
        (lambda: m.accuracy_at_coverage([0.5], [1], "half"), "coverage=half"),
        (lambda: m.accuracy_at_coverage([0.5], [1], jnp.array(0.5)), "static Python number"),
        (lambda: m.cwar_threshold([0.5], [1], 0.3, rule="last"), "first, suffix or certified"),
        (lambda: m.cwar_threshold([0.5], [1], 0.3, delta=0), "delta=0"),
        (lambda: m.cwar_threshold([0.5], [1], 0.3, grid=[np.nan]), "grid"),
        (lambda: m.conformal_threshold([0.5], alpha=2), "alpha=2"),
        (lambda: m.conformal_score_threshold([0.5], [1], alpha=0.1, target="all"), "target=all"),
        (lambda: m.conformal_score_threshold([0.5], [1], alpha=0.1, target="selection"), "None"),
        (lambda: m.budget_count(10, 0.5, rule="hoeffding"), "rule=hoeffding"),
        (lambda: m.budget_count(10, 0.5, rule="exact", alpha=0), "alpha=0"),
        (lambda: m.budget_count(-1, 0.5), "n=-1"),
        (lambda: m.dkw_margin(10, sides=3), "sides=3"),
        (lambda: m.dkw_margin(10, alpha=0.6), "at most 0.5"),
        (lambda: m.budget_threshold_details([0.5], 1, tie="first"), "whole or random"),
        (lambda: m.recall_at_k([1, 0], k=0), "k=0"),
        (lambda: m.recall_at_k(1, k=1), "a list of hits"),
        (lambda: m.recall_at_k([1, -1], k=1), r"relevant\[1\]=-1"),
        (lambda: m.recall_at_k([1, 0], k=1, where=[True]), "where.shape"),
        (lambda: m.agreement([1], [1], num_bins=0), "num_bins=0"),
    ],
)
def test_options_are_checked_and_the_message_says_what_is_allowed(call, text):
    with pytest.raises(InputError, match=text):
        call()


def test_labels_may_be_soft_booleans_or_integers():
    for y in ([True, False], [1, 0], [1.0, 0.0], np.array([1, 0], np.int64)):
        assert float(m.brier_score([0.5, 0.5], y)) == 0.25
        traced = jax.jit(m.brier_score)(jnp.array([0.5, 0.5]), jnp.asarray(y))
        assert float(traced) == 0.25
    assert float(m.accuracy([0.5, 0.25])) == 0.375
    counts = jax.jit(lambda w: m.accuracy(jnp.array([True, False]), weight=w))(jnp.array([3, 1]))
    assert float(counts) == 0.75


def test_integer_scores_keep_their_order_beyond_float32():
    big = 2**24
    assert float(m.auroc(np.array([big, big + 1], np.int32), [0, 1])) == 1


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_results_are_at_least_float32(dtype):
    s, y = jnp.array([0.25, 0.75], dtype), jnp.array([0, 1], dtype)
    for name in ("auroc", "ece", "brier", "log_loss", "auc_ac", "exact_frontier", "cwar"):
        assert jax.eval_shape(ALL[name], s, y).dtype == jnp.float32, name


def test_float64_is_kept_when_it_is_on():
    with jax.enable_x64(True):
        s, y = np.array([0.25, 0.75]), np.array([0.0, 1.0])
        for name in ("auroc", "ece", "brier", "log_loss", "auc_ac", "exact_frontier", "cwar"):
            assert jax.eval_shape(ALL[name], s, y).dtype == jnp.float64, name
        # A difference that float32 cannot see.
        assert float(m.auroc(np.array([0.5, 0.5 + 1e-12]), y)) == 1


def test_thresholds_of_float64_scores_are_scores_to_the_last_digit():
    s = np.random.default_rng(0).random(50)
    tau = m.budget_threshold(s, 20)
    assert tau in s and (s >= tau).sum() == 20


def test_import_neither_starts_a_backend_nor_reads_the_rest_of_the_package():
    import ast
    import pathlib
    import subprocess
    import sys

    folder = pathlib.Path(m.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                if name and name.startswith("calibjax"):
                    assert name.startswith("calibjax.metrics") or name == "calibjax.errors", path
    code = (
        "import jax, calibjax.metrics;"
        "from jax._src import xla_bridge;"
        "assert not xla_bridge.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_new_values_do_not_compile_again():
    rng = np.random.default_rng(0)

    def call():
        s, y = rng.random(13).astype(np.float32), np.arange(13) % 2
        threshold = float(rng.random())
        m.expected_calibration_error(s, y)
        m.auroc(s, y)
        m.accuracy_at_coverage(s, y, round(float(rng.random()), 3))
        m.confident_wrong_answer_rate(s, y, threshold)
        m.cwar_threshold(s, y, round(threshold, 2))
        m.conformal_threshold(s, alpha=round(threshold, 2))
        m.budget_threshold(s, int(threshold * 10))
        m.deployable_frontier(s, s, y, 1 - y, (round(threshold, 2), 0.5))

    call()
    with jax.no_tracing(True):
        call()
