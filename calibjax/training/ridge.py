"""Where the `fixed` head starts: ridge logistic regression on features of the frozen decoder.

A few hundred labelled rows cannot choose among the functions of an MLP with random weights, which
starts above the loss of a constant; a linear forecast shrunk as far as cross-validation by question
asks for starts below it. The MLP head is set to compute exactly that forecast, and goes on from
there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from calibjax.forecaster.fourier import fourier_features
from calibjax.forecaster.model import ForecastModel
from calibjax.forecaster.presets import Preset

# Prior standard deviation of the logit, from nearly constant to nearly unpenalised.
SPREADS = (0.1, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
FOLDS = 5
# Newton's method solves a system of as many equations as there are rows.
MAX_ROWS = 1000
# Prior spread of what the slowest wave of t adds to the logit, beside that of the features.
TIME_SPREAD = 0.25


class Linear(NamedTuple):
    """logit = x w + bias."""

    w: np.ndarray
    bias: float


def start_from_ridge(
    model: ForecastModel,
    preset: Preset,
    features_ND: np.ndarray,
    temperature_N: np.ndarray,
    label_N: np.ndarray,
    questions: Sequence[str],
) -> float:
    """Set head and W_p of the model in place; returns the spread that was chosen.

    features: as `forecast_logits` sees them, standardised. questions: of each row; folds keep them
    whole.
    """
    keep = _subset(questions)
    x_ND, label = features_ND[keep], label_N[keep].astype(np.float64)
    waves_NF = _waves(preset, temperature_N[keep], x_ND.shape[1])
    design = np.concatenate([x_ND.astype(np.float64), waves_NF], axis=1)
    spread = choose_spread(design, label, [questions[i] for i in keep])
    fitted = fit_ridge(design, label, design.shape[1] / spread**2)
    w, v_F = fitted.w[: x_ND.shape[1]], fitted.w[x_ND.shape[1] :]
    if model.temperature_kernel is not None:
        # W_p is turned so that w sees in it what the regression found, and keeps all else.
        kernel = np.asarray(model.temperature_kernel[...], np.float64)
        target = v_F * _wave_sizes(preset, len(w))
        kernel += np.outer(target - kernel @ w, w) / max(w @ w, 1e-12)
        model.temperature_kernel[...] = jnp.asarray(kernel, jnp.float32)
    plant(model, w, fitted.bias, label)
    return spread


def fit_ridge(x_ND: np.ndarray, label_N: np.ndarray, penalty: float, steps: int = 50) -> Linear:
    """Minimise the summed soft log loss + penalty / 2 |w|^2; the bias is free. float64.

    Newton's method in the space of the rows (w = x^T a), so D may be larger than N.
    """
    n = len(label_N)
    kernel = x_ND @ x_ND.T

    def objective(a: np.ndarray, bias: float) -> float:
        z = kernel @ a + bias
        return float((np.logaddexp(0.0, z) - label_N * z).sum() + 0.5 * penalty * a @ (z - bias))

    a, bias = np.zeros(n), float(np.log(_rate(label_N) / (1 - _rate(label_N))))
    for _ in range(steps):
        z = kernel @ a + bias
        p = expit(z)
        weight = np.maximum(p * (1 - p), 1e-6)
        system = np.empty((n + 1, n + 1))
        system[:n, :n] = kernel + np.diag(penalty / weight)
        system[n, :n] = system[:n, n] = 1.0
        system[n, n] = 0.0
        solution = np.linalg.solve(system, np.append(z + (label_N - p) / weight, 0.0))
        # Labels that a few features separate make whole steps jump back and forth.
        now, part = objective(a, bias), 1.0
        step, bias_step = solution[:n] - a, float(solution[n]) - bias
        while objective(a + part * step, bias + part * bias_step) > now and part > 1e-6:
            part /= 2
        a, bias = a + part * step, bias + part * bias_step
        if part * np.abs(step).max() < 1e-9 * max(1.0, float(np.abs(a).max())):
            break
    return Linear(x_ND.T @ a, bias)


def choose_spread(x_ND: np.ndarray, label_N: np.ndarray, questions: Sequence[str]) -> float:
    """The smallest of `SPREADS` whose cross-validated loss is within a standard error of the least.

    The one-standard-error rule (Hastie et al., Elements of Statistical Learning, 7.10), with folds
    of whole questions and the error over questions. The loss hardly tells a wide range of spreads
    apart, while the document of a question is chosen by the largest of K forecasts, which a wide
    spread overstates.
    """
    ids, member = np.unique(np.asarray(questions), return_inverse=True)
    folds = min(FOLDS, len(ids))
    if folds < 2:
        return SPREADS[0]
    fold_N = np.random.default_rng(0).permutation(len(ids))[member] % folds
    loss_SN = np.empty((len(SPREADS), len(label_N)))
    for loss_N, spread in zip(loss_SN, SPREADS):
        for fold in range(folds):
            test = fold_N == fold
            fitted = fit_ridge(x_ND[~test], label_N[~test], x_ND.shape[1] / spread**2)
            z = x_ND[test] @ fitted.w + fitted.bias
            loss_N[test] = np.logaddexp(0.0, z) - label_N[test] * z
    loss_SQ = np.array([np.bincount(member, loss_N) for loss_N in loss_SN])
    mean_S = loss_SQ.mean(1)
    least = np.argmin(mean_S)
    error = loss_SQ[least].std(ddof=1) / np.sqrt(len(ids))
    return SPREADS[int(np.argmax(mean_S <= mean_S[least] + error))]


def plant(model: ForecastModel, w: np.ndarray, bias: float, label_N: np.ndarray) -> None:
    """Set the head to compute logit = x w + bias; hidden units that are not needed start unheard.

    Two units carry the positive and the negative part through the ReLUs. With C = 11 outputs the
    last layer tilts the frequencies of the classes by that logit, so that their expected value
    rises with it.
    """
    kernels = [np.array(kernel[...], np.float64) for kernel in model.head.kernels]
    biases = [np.array(each[...], np.float64) for each in model.head.biases]
    read_out = _read_out(bias, label_N, kernels[-1].shape[1])
    if len(kernels) == 1:
        kernels[0] = np.outer(w, read_out.w)
    else:
        kernels[0][:, 0], kernels[0][:, 1] = w, -w
        for kernel in kernels[1:-1]:
            kernel[:, :2] = 0.0
            kernel[0, 0] = kernel[1, 1] = 1.0
        kernels[-1][:] = 0.0
        kernels[-1][0], kernels[-1][1] = read_out.w, -read_out.w
    if len(biases) == len(kernels):
        biases[-1][:] = read_out.bias
    for parameter, value in zip([*model.head.kernels, *model.head.biases], [*kernels, *biases]):
        parameter[...] = jnp.asarray(value, jnp.float32)


def _read_out(bias: float, label_N: np.ndarray, outputs: int) -> "_Outputs":
    """How the last layer reads the score x w: weights and biases [C]."""
    if outputs == 1:
        return _Outputs(np.ones(1), np.full(1, bias))
    if outputs == 2:
        return _Outputs(np.array([0.5, -0.5]), np.array([0.5 * bias, -0.5 * bias]))
    class_N = np.rint((outputs - 1) * label_N).astype(int)
    count_C = np.bincount(class_N, minlength=outputs) + 0.5
    value_C = np.arange(outputs) / (outputs - 1)
    return _Outputs(value_C - value_C.mean(), np.log(count_C / count_C.sum()))


class _Outputs(NamedTuple):
    w: np.ndarray
    bias: np.ndarray


def _subset(questions: Sequence[str]) -> np.ndarray:
    """Row numbers of as many whole questions (a seeded choice) as `MAX_ROWS` allows."""
    if len(questions) <= MAX_ROWS:
        return np.arange(len(questions))
    ids, member = np.unique(np.asarray(questions), return_inverse=True)
    rank_N = np.random.default_rng(0).permutation(len(ids))[member]
    counts = np.bincount(rank_N)
    return np.flatnonzero(rank_N < np.searchsorted(np.cumsum(counts), MAX_ROWS, side="right"))


def _waves(preset: Preset, temperature_N: np.ndarray, num_features: int) -> np.ndarray:
    if preset.fourier is None:
        return np.zeros((len(temperature_N), 0))
    code = fourier_features(
        temperature_N,
        num_frequencies=preset.num_frequencies,
        t_min=preset.t_min,
        t_max=preset.t_max,
        variant=preset.fourier,
    )
    return np.asarray(code, np.float64) * _wave_sizes(preset, num_features)


def _wave_sizes(preset: Preset, num_features: int) -> np.ndarray:
    """Column scales: a faster wave is a less likely reason."""
    sizes = TIME_SPREAD * np.sqrt(num_features) * 2.0 ** -np.arange(preset.num_frequencies)
    return np.tile(sizes, 2) if preset.fourier == "code" else np.repeat(sizes, 2)


def _rate(label_N: np.ndarray) -> float:
    return float(np.clip(label_N.mean(), 1e-3, 1 - 1e-3))
