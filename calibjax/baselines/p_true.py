"""P(true): the plain reader is asked whether the decision is right (Kadavath et al., 2022)."""

from collections.abc import Sequence

import numpy as np

from calibjax.backbone import Decoder
from calibjax.generation.prompts import p_true_messages
from calibjax.generation.readout import class_probabilities


def p_true_confidence(
    reader: Decoder, questions: Sequence[str], guidance: Sequence[str], decisions: Sequence[str]
) -> np.ndarray:
    """P("Yes") against P("No") as the next token, one per decision, in [0, 1].

    Where a tokenizer splits the words, their first tokens stand for them.
    """
    prompts = [p_true_messages(*each) for each in zip(questions, guidance, decisions)]
    first_tokens = [reader.tokenizer.encode(word)[0] for word in ("Yes", "No")]
    return class_probabilities(reader, prompts, first_tokens)[:, 0]
