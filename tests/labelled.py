"""Small labelled sets for the forecaster's tests."""

import dataclasses
from typing import Any

import numpy as np

from calibjax.forecaster import PRESETS, Preset
from calibjax.records import SupervisionRow


def make_rows(num_questions: int = 8, docs: int = 3, seed: int = 0) -> list[SupervisionRow]:
    """Rows whose label is high where the document says "good", with noise, at random t."""
    rng = np.random.default_rng(seed)
    rows = []
    for q in range(num_questions):
        for k in range(docs):
            good = bool(rng.random() < 0.5)
            text = ("good " if good else "bad ") * int(rng.integers(2, 6))
            label = float(np.round(np.clip(0.2 + 0.5 * good + 0.2 * rng.normal(), 0, 1), 1))
            t = float(rng.uniform(1, 2))
            rows.append(make_row(f"q{q}", f"p{k}", f"Land {q}?", text, t, label))
    return rows


def make_row(
    question: str, passage: str, query: str, text: str, temperature: float, label: float
) -> SupervisionRow:
    return SupervisionRow(
        question, passage, query, f"Title {passage}", text, "z", temperature, (), (), label
    )


def small_preset(**changes: Any) -> Preset:
    """The `fixed` preset with few steps."""
    fields: dict[str, Any] = dict(steps=6, warmup_steps=1, num_evaluations=2, head_warmup_steps=3)
    return dataclasses.replace(PRESETS["fixed"], **(fields | changes))
