"""`Forecaster`: f(t, q, d), the probability that a user at temperature t decides right after d."""

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike

from calibjax.backbone.load import Decoder
from calibjax.data.batching import make_groups
from calibjax.errors import input_error
from calibjax.forecaster.extract import extract_features
from calibjax.forecaster.fourier import check_temperature
from calibjax.forecaster.heads import probability
from calibjax.forecaster.model import forecast_logits, initial_model
from calibjax.forecaster.presets import Preset, get_preset
from calibjax.forecaster.prompts import check_lists, forecast_prompts
from calibjax.records import SupervisionRow

# Averaged over when the user's temperature is not known (CalibRAG, section 3.4).
MARGINAL_TEMPERATURES = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)


class Reranked(NamedTuple):
    """order: document numbers, best first (ties in input order); confidence: in that order."""

    order: np.ndarray
    confidence: np.ndarray


class Forecaster:
    """A decoder with a trained adapter, temperature code and head.

    preset: "paper", "code", "fixed" or a `Preset` (fields changed by `dataclasses.replace`).
    method: "calibrag", "calibrag_multi" (11 classes, read out as their expected value) or
    "calibrag_no_temperature" (f(q, d)). key: seeds the initial parameters.
    """

    def __init__(
        self,
        decoder: Decoder,
        preset: str | Preset = "fixed",
        *,
        key: jax.Array,
        method: str = "calibrag",
    ):
        self.decoder = decoder
        self.method = method
        self.preset = get_preset(preset, method)
        if self.preset.layer != -2:
            raise input_error("layer", self.preset.layer, "-2, the last block but one")
        self.model = initial_model(decoder.config, self.preset, key)

    def fit(
        self,
        rows: Sequence[SupervisionRow],
        *,
        validation: Sequence[SupervisionRow] | None = None,
        seed: int = 0,
        out: str | os.PathLike | None = None,
        resume: bool = False,
        frozen: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None,
        engine: Any = None,
    ) -> Any:
        """Train on labelled rows; the step with the lowest validation loss is kept.

        validation: rows of other questions (None: a seeded fifth of the questions of `rows`). out:
        where metrics.jsonl and checkpoint/ go (None: nothing is written); resume: go on from the
        newest good checkpoint there. frozen: gives `training.head_start.frozen_features` of rows
        and validation rows, for several methods on the same rows. engine: a
        `training.engine.Engine` (remat, checkpoints, trackers). Returns a `training.fit.FitReport`.
        """
        from calibjax.forecaster.saving import describe
        from calibjax.training.engine import Engine
        from calibjax.training.fit import fit

        self.model, report = fit(
            self.decoder,
            self.model,
            self.preset,
            rows,
            validation=validation,
            seed=seed,
            out=out,
            resume=resume,
            frozen=frozen,
            info=describe(self),
            engine=engine or Engine(),
        )
        return report

    def features(self, queries: Sequence[str], documents: Sequence[Sequence[Any]]) -> np.ndarray:
        """float32 [query, document, D]: one decoder pass per pair, all a score needs to know of it.

        documents: per query a list of {"title", "text"} or `Passage`; shorter lists end in NaN.
        """
        check_lists(queries, documents)
        prefixes, suffixes, places = [], [], []
        for i, (query, candidates) in enumerate(zip(queries, documents)):
            for j, prompt in enumerate(self._prompts(query, candidates)):
                prefixes.append(prompt.prefix)
                suffixes.append(prompt.suffix)
                places.append((i, j))
        shape = (len(queries), max(map(len, documents), default=0), self.decoder.config.hidden_size)
        features_QKD = np.full(shape, np.nan, np.float32)
        if places:
            groups = make_groups(prefixes, suffixes, max_documents=DOCUMENTS_PER_ROW)
            features_QKD[tuple(np.array(places).T)] = extract_features(
                self.decoder.module, self.model.adapter, groups, num_rows=len(places)
            )
        return features_QKD

    def score(
        self,
        queries: Sequence[str],
        documents: Sequence[Sequence[Any]],
        temperatures: ArrayLike | None = None,
    ) -> np.ndarray:
        """P(right decision), float32 [query, document] in [0, 1]; shorter lists end in NaN.

        temperatures: None averages the probabilities at 1.0, 1.1, ..., 1.5 (one decoder pass serves
        all six); a number, or one per query, conditions on it. Outside the range the forecaster was
        trained for: InputError.
        """
        check_lists(queries, documents)
        t_QM = self._temperatures(temperatures, len(queries))
        return self._read_out(self.features(queries, documents), t_QM)

    def score_features(
        self, features: np.ndarray, temperatures: ArrayLike | None = None
    ) -> np.ndarray:
        """`score` from the result of `features`: other temperatures cost no decoder pass."""
        return self._read_out(features, self._temperatures(temperatures, len(features)))

    def count_tokens(
        self, queries: Sequence[str], documents: Sequence[Sequence[Any]]
    ) -> list[int]:
        """Tokens that `score` reads for each query: its documents, and the query once a row."""
        check_lists(queries, documents)
        counts = []
        for query, candidates in zip(queries, documents):
            prompts = self._prompts(query, candidates)
            rows = math.ceil(len(prompts) / DOCUMENTS_PER_ROW)
            prefix = len(prompts[0].prefix) if prompts else 0
            counts.append(rows * prefix + sum(len(prompt.suffix) for prompt in prompts))
        return counts

    def rerank(
        self, query: str, documents: Sequence[Any], temperature: float | None = None
    ) -> Reranked:
        """Documents by falling confidence; the confidence is the forecast itself."""
        scores = self.score([query], [documents], temperature)[0]
        order = np.argsort(-scores, kind="stable")
        return Reranked(order, scores[order])

    def save(self, path: str | os.PathLike) -> None:
        """Write the trained parameters, the preset and the backbone's hash to a new directory."""
        from calibjax.forecaster.saving import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike, *, backbone: Decoder | str) -> "Forecaster":
        """The forecaster that `save` or `save_peft` wrote, or the best one of a training run.

        backbone: the decoder it was trained on, or its source. Raises InputError when it is another
        one, CheckpointError when the files are damaged.
        """
        from calibjax.forecaster.saving import load

        return load(path, backbone)

    def save_peft(self, path: str | os.PathLike) -> None:
        """Write the adapter in Hugging Face PEFT's layout, and the head beside it.

        path: a new directory, or an earlier one of the same kind to replace. PyTorch's PEFT loads
        the adapter onto the base model; the head's files are not in its way.
        """
        from calibjax.forecaster.interchange import save_peft

        save_peft(self, path)

    def load_peft(self, path: str | os.PathLike) -> "Forecaster":
        """Take over adapter, head, preset and method from a directory in PEFT's layout.

        The adapter may have been trained on by PEFT. Returns this forecaster. Raises InputError
        when the head is missing, a file is damaged, or the decoder is not the one trained on.
        """
        from calibjax.forecaster.interchange import load_peft

        load_peft(self, path)
        return self

    def with_preset(self, **changes: Any) -> "Forecaster":
        """A copy that shares parameters but reads other preset fields (not the model's shape)."""
        copy = object.__new__(Forecaster)
        copy.__dict__.update(self.__dict__)
        copy.preset = dataclasses.replace(self.preset, **changes)
        return copy

    def _prompts(self, query: str, documents: Sequence[Any]) -> list[Any]:
        return forecast_prompts(
            self.decoder.tokenizer,
            query,
            documents,
            max_document_tokens=self.preset.max_document_tokens,
            max_tokens=self.decoder.config.max_positions,
            bos=self.preset.bos,
        )

    def _temperatures(self, temperatures: ArrayLike | None, num_queries: int) -> np.ndarray:
        """float32 [query, M], checked."""
        if temperatures is None:
            return np.tile(np.array(MARGINAL_TEMPERATURES, np.float32), (num_queries, 1))
        t = np.asarray(temperatures, np.float32)
        if t.ndim > 1 or (t.ndim == 1 and len(t) != num_queries):
            expected = f"a number, or one per query ({num_queries})"
            raise input_error("temperatures", f"array of shape {t.shape}", expected)
        check_temperature(t, self.preset.t_min, self.preset.t_max)
        return np.broadcast_to(t.reshape(-1, 1), (num_queries, 1))

    def _read_out(self, features_QKD: np.ndarray, t_QM: np.ndarray) -> np.ndarray:
        present = np.isfinite(features_QKD).all(axis=-1)
        if not present.any():
            return np.full(present.shape, np.nan, np.float32)
        query, _ = np.nonzero(present)
        features_ND, t_NM = jnp.asarray(features_QKD[present]), jnp.asarray(t_QM[query])
        scores = np.full(present.shape, np.nan, np.float32)
        graphdef, values = nnx.split(self.model)
        scores[present] = _mean_probability(graphdef, self.preset, values, features_ND, t_NM)
        return scores


# Documents of a query in one row: they share its prefix, but unlike rows are padded to one length.
DOCUMENTS_PER_ROW = 10


@partial(jax.jit, static_argnums=(0, 1))
def _mean_probability(graphdef, preset, values, features_ND, t_NM):
    model = nnx.merge(graphdef, values)
    return jnp.mean(probability(forecast_logits(model, features_ND, t_NM, preset)), axis=-1)
