import dataclasses

import jax
import numpy as np
import pytest

from calibjax.errors import InputError
from calibjax.forecaster import (
    MARGINAL_TEMPERATURES,
    PRESETS,
    Forecaster,
    extract,
    fourier_features,
)
from calibjax.forecaster.model import FeatureStatistic
from calibjax.forecaster.prompts import forecast_prompts
from calibjax.training.mesh import mesh_of
from tests.tiny import tiny_decoder

QUERIES = ["Which capital?", "Which river?"]
DOCUMENTS = [
    [{"title": "Oslo", "text": "A city."}, {"title": "Rhine", "text": "A river, and a long one."}],
    [{"title": "Rhine", "text": "A river."}],
]
DECODER = tiny_decoder()


def make(preset="fixed", method="calibrag", seed=0) -> Forecaster:
    """A forecaster whose parts all have an effect: adapter on, statistics not trivial."""
    made = Forecaster(DECODER, preset, key=jax.random.key(seed), method=method)
    if made.model.adapter is not None:
        made.model.adapter = jax.tree.map(lambda x: x + 0.03, made.model.adapter)
    rng = np.random.default_rng(seed)
    if made.preset.standardize:
        made.model.mean = FeatureStatistic(np.asarray(rng.normal(size=32), np.float32))
        made.model.scale = FeatureStatistic(np.asarray(1 + rng.random(32), np.float32))
    return made


@pytest.fixture(scope="module")
def forecasters() -> dict[str, Forecaster]:
    return {name: make(name) for name in PRESETS}


def closed_form(made: Forecaster, h: np.ndarray, t: float) -> np.ndarray:
    """f from cached features in NumPy float64: read-out of head((h - mean) / scale + W_p PE(t))."""
    model = made.model
    x = np.asarray(h, np.float64)
    if made.preset.standardize:
        x = (x - np.asarray(model.mean[...])) / np.asarray(model.scale[...])
    if model.temperature_kernel is not None:
        code = np.asarray(fourier_features(t, variant=made.preset.fourier), np.float64)
        x = x + code @ np.asarray(model.temperature_kernel[...], np.float64)
    for i, kernel in enumerate(model.head.kernels):
        x = x @ np.asarray(kernel[...], np.float64)
        if i < len(model.head.biases):
            x = x + np.asarray(model.head.biases[i][...], np.float64)
        if i + 1 < len(model.head.kernels):
            x = np.maximum(x, 0)
    if x.shape[-1] == 1:
        return 1 / (1 + np.exp(-x[..., 0]))
    p = np.exp(x - x.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p[..., 0] if x.shape[-1] == 2 else p @ (np.arange(x.shape[-1]) / (x.shape[-1] - 1))


@pytest.mark.parametrize("method", ["calibrag", "calibrag_multi", "calibrag_no_temperature"])
@pytest.mark.parametrize("preset", list(PRESETS))
def test_scores_equal_the_closed_form_on_cached_features(preset, method, forecasters):
    made = forecasters[preset] if method == "calibrag" else make(preset, method)
    h = made.features(QUERIES, DOCUMENTS)
    got = made.score_features(h, [1.1, 1.7])
    for q, t in enumerate((1.1, 1.7)):
        n = len(DOCUMENTS[q])
        np.testing.assert_allclose(got[q, :n], closed_form(made, h[q, :n], t), atol=1e-6)


def test_features_are_those_of_the_whole_prompt():
    made = make()
    plain = Forecaster(DECODER, key=jax.random.key(0))
    got = plain.features(QUERIES, DOCUMENTS)
    for q, (query, documents) in enumerate(zip(QUERIES, DOCUMENTS)):
        limits = dict(max_document_tokens=512, max_tokens=4096)
        prompts = forecast_prompts(DECODER.tokenizer, query, documents, **limits)
        for k, prompt in enumerate(prompts):
            ids = np.array([[*prompt.prefix, *prompt.suffix]], np.int32)
            want = DECODER.features(ids, np.array([ids.shape[1]], np.int32))[0]
            np.testing.assert_allclose(got[q, k], want, atol=2e-5, rtol=2e-5)
    # The adapter of a trained forecaster takes part.
    assert np.abs(made.features(QUERIES, DOCUMENTS) - got)[0].max() > 1e-3


def test_missing_documents_are_nan_and_scores_are_probabilities(forecasters):
    scores = forecasters["fixed"].score(QUERIES, DOCUMENTS)
    assert scores.shape == (2, 2) and scores.dtype == np.float32
    assert np.isnan(scores[1, 1])
    present = scores[~np.isnan(scores)]
    assert present.size == 3 and ((present > 0) & (present < 1)).all()


def test_the_marginal_is_the_mean_of_six_probabilities_from_one_pass(forecasters, monkeypatch):
    made = forecasters["fixed"]
    passes = []
    real = extract.features_pass

    def counted(backbone, mesh):
        run = real(backbone, mesh)
        return lambda *a: passes.append(1) or run(*a)

    monkeypatch.setattr(extract, "features_pass", counted)
    marginal = made.score(QUERIES, DOCUMENTS)
    in_one_call = len(passes)
    each = [made.score(QUERIES, DOCUMENTS, t) for t in MARGINAL_TEMPERATURES]
    assert in_one_call == 1 and len(passes) == 7
    np.testing.assert_allclose(marginal, np.mean(each, axis=0), atol=1e-6)
    assert MARGINAL_TEMPERATURES == (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)


def test_one_temperature_per_query_conditions_each_query(forecasters):
    made = forecasters["fixed"]
    mixed = made.score(QUERIES, DOCUMENTS, [1.0, 1.4])
    np.testing.assert_array_equal(mixed[0], made.score(QUERIES, DOCUMENTS, 1.0)[0])
    np.testing.assert_array_equal(mixed[1], made.score(QUERIES, DOCUMENTS, 1.4)[1])
    assert np.abs(mixed[1, 0] - made.score(QUERIES, DOCUMENTS, 1.0)[1, 0]) > 1e-6


def test_one_program_serves_every_call_of_a_shape(forecasters):
    made = forecasters["fixed"]
    made.score(QUERIES, DOCUMENTS)
    run = extract.features_pass(made.decoder.module, mesh_of(made.decoder.module))
    before = run._cache_size()
    made.score(list(reversed(QUERIES)), list(reversed(DOCUMENTS)), 1.3)
    assert run._cache_size() == before > 0


def test_a_linear_head_ranks_alike_at_every_temperature(forecasters):
    made = forecasters["paper"]
    rng = np.random.default_rng(0)
    h = rng.normal(size=(1, 40, 32)).astype(np.float32)
    scores = [made.score_features(h, t)[0] for t in (1.0, 1.13, 1.37, 1.71)]
    orders = {tuple(np.argsort(-s, kind="stable")) for s in scores}
    assert len(orders) == 1
    assert np.ptp([s[0] for s in scores]) > 1e-4  # t does move the confidence


def test_rerank_orders_by_the_score_and_keeps_ties_in_place(forecasters):
    made = forecasters["fixed"]
    documents = [*DOCUMENTS[0], DOCUMENTS[0][0]]
    scores = made.score([QUERIES[0]], [documents])[0]
    order, confidence = made.rerank(QUERIES[0], documents)
    np.testing.assert_array_equal(order, np.argsort(-scores, kind="stable"))
    np.testing.assert_array_equal(confidence, scores[order])
    assert list(order).index(0) < list(order).index(2)


def test_a_score_does_not_depend_on_its_company(forecasters):
    made = forecasters["fixed"]
    crowd = [DOCUMENTS[0] + [{"title": "x", "text": "filler " * n} for n in range(1, 6)]]
    alone = made.score([QUERIES[0]], [DOCUMENTS[0][:1]])[0, 0]
    # Another row length means another order of the same float32 sums.
    assert made.score([QUERIES[0]], crowd)[0, 0] == pytest.approx(alone, abs=1e-5)


def test_wrong_input_is_refused_by_name(forecasters):
    made = forecasters["fixed"]
    for t in (0.0, 0.9, 2.1, float("nan")):
        with pytest.raises(InputError, match="temperature="):
            made.score(QUERIES, DOCUMENTS, t)
    with pytest.raises(InputError, match="temperatures="):
        made.score(QUERIES, DOCUMENTS, [1.0, 1.1, 1.2])
    with pytest.raises(InputError, match="documents=1 lists"):
        made.score(QUERIES, DOCUMENTS[:1])
    with pytest.raises(InputError, match="queries=str"):
        made.score("one query", DOCUMENTS)
    with pytest.raises(InputError, match="layer=-1"):
        Forecaster(DECODER, dataclasses.replace(PRESETS["fixed"], layer=-1), key=jax.random.key(0))


def test_nothing_to_score_is_no_error(forecasters):
    assert forecasters["fixed"].score([], []).shape == (0, 0)
    assert forecasters["fixed"].score(["q"], [[]]).shape == (1, 0)
    order, confidence = forecasters["fixed"].rerank("q", [])
    assert len(order) == len(confidence) == 0
