"""P(true): the plain reader is asked whether the decision is right (Kadavath et al., 2022)."""

from collections.abc import Sequence

import numpy as np

from calibjax.backbone import Decoder
from calibjax.generation.prompts import p_true_messages
from calibjax.generation.readout import class_probabilities, class_token_ids


def p_true_confidence(
    reader: Decoder, questions: Sequence[str], guidance: Sequence[str], decisions: Sequence[str]
) -> np.ndarray:
    """P("yes") against P("no") as the next token, one per decision, in [0, 1]."""
    prompts = [p_true_messages(*each) for each in zip(questions, guidance, decisions)]
    probability_NC = class_probabilities(
        reader, prompts, class_token_ids(reader.tokenizer, ("Yes", "No"))
    )
    return probability_NC[:, 0]
