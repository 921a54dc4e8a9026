"""Labelled rows as training takes them: split by question, checked, tokenised and grouped."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibjax.backbone.load import Decoder
from calibjax.data.batching import Group, make_groups
from calibjax.errors import input_error
from calibjax.forecaster.presets import Preset
from calibjax.forecaster.prompts import forecast_prompts
from calibjax.records import SupervisionRow

# Documents of a query in one group: they share a prefix, but attention is wasted on their pairs.
MAX_DOCUMENTS = 5


class Data(NamedTuple):
    """Labelled rows, and their prompts in groups."""

    rows: Sequence[SupervisionRow]
    groups: list[Group]
    temperature: np.ndarray
    label: np.ndarray


def split_by_question(
    rows: Sequence[SupervisionRow], *, seed: int, fraction: float = 0.2
) -> tuple[list[SupervisionRow], list[SupervisionRow]]:
    """(train, validation): a seeded share of the questions, never of the rows, is set aside."""
    ids = sorted({row.question_id for row in rows})
    if len(ids) < 2:
        fix = "give rows of more questions, or validation rows"
        raise input_error("questions", len(ids), "two or more", fix)
    order = np.random.default_rng(seed).permutation(len(ids))
    count = max(1, round(fraction * len(ids)))
    held_out = {ids[i] for i in order[:count]}
    train_rows = [row for row in rows if row.question_id not in held_out]
    return train_rows, [row for row in rows if row.question_id in held_out]


def prepare(decoder: Decoder, preset: Preset, rows: Sequence[SupervisionRow]) -> Data:
    """Rows checked, tokenised and grouped. Raises InputError for a label or t out of range."""
    if not rows:
        raise input_error("rows", 0, "at least one labelled row")
    for row in rows:
        where = f"row {row.question_id}/{row.passage_id}"
        if not 0.0 <= row.label <= 1.0:
            raise input_error(f"{where}: label", row.label, "a number in [0, 1]")
        if not preset.t_min <= row.temperature <= preset.t_max:
            expected = f"a number in [{preset.t_min}, {preset.t_max}]"
            raise input_error(f"{where}: temperature", row.temperature, expected)
    prompts = [
        forecast_prompts(
            decoder.tokenizer,
            row.query,
            [row],
            max_document_tokens=preset.max_document_tokens,
            max_tokens=decoder.config.max_positions,
            bos=preset.bos,
        )[0]
        for row in rows
    ]
    prefixes = [prompt.prefix for prompt in prompts]
    suffixes = [prompt.suffix for prompt in prompts]
    if preset.group_by == "row":
        groups = [Group(p, (s,), ((i,),)) for i, (p, s) in enumerate(zip(prefixes, suffixes))]
    else:
        groups = make_groups(prefixes, suffixes, max_documents=MAX_DOCUMENTS)
    temperature = np.array([row.temperature for row in rows], np.float32)
    return Data(rows, groups, temperature, np.array([row.label for row in rows], np.float32))
