"""The plain reader states a number from 0 to 10 (zero-shot, adapter off)."""

from collections.abc import Sequence

import numpy as np

from calibjax.backbone import Decoder
from calibjax.generation.prompts import NUMBER_CLASSES, verbal_number_messages
from calibjax.generation.readout import class_probabilities, class_token_ids


def verbal_number_confidence(
    reader: Decoder, questions: Sequence[str], guidance: Sequence[str], decisions: Sequence[str]
) -> np.ndarray:
    """Expected stated number / 10, one per decision, in [0, 1].

    Read as a distribution over eleven class letters, so every answer parses; the mean is used since
    the most likely class alone throws the reader's own doubt away.
    """
    prompts = [verbal_number_messages(*each) for each in zip(questions, guidance, decisions)]
    probability_NC = class_probabilities(
        reader, prompts, class_token_ids(reader.tokenizer, NUMBER_CLASSES)
    )
    return probability_NC @ np.linspace(0.0, 1.0, len(NUMBER_CLASSES))
