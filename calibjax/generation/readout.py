"""Probabilities of a few answers, read from the next-token distribution without generating."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.backbone import continuation as passes
from calibjax.backbone.decoder import DecoderModule
from calibjax.backbone.load import Decoder
from calibjax.backbone.tokenizer import Prompt, Tokenizer
from calibjax.errors import input_error
from calibjax.generation.batches import common_tokens, plan
from calibjax.training import signals


def class_token_ids(tokenizer: Tokenizer, classes: Sequence[str]) -> list[int]:
    """The single token of each class. Raises InputError naming the class and the tokenizer."""
    ids = []
    for text in classes:
        tokens = tokenizer.encode(text)
        if len(tokens) != 1 or tokens[0] in ids:
            expected = f"one token of its own in {tokenizer.name}"
            raise input_error("class", repr(text), expected, "choose other class symbols")
        ids += tokens
    return ids


def class_probabilities(
    decoder: Decoder, prompts: Sequence[Prompt], class_ids: Sequence[int]
) -> np.ndarray:
    """Softmax over the class tokens alone of each prompt's next token, float32 [n, C]."""
    tokenizer = decoder.tokenizer
    ids = [tokenizer.encode_prompt(prompt) for prompt in prompts]
    probability_NC = np.empty((len(ids), len(class_ids)), np.float32)
    class_ids_C = np.asarray(class_ids, np.int32)
    for batch in plan(ids, pad_id=tokenizer.pad_id):
        signals.check()
        rows = (batch.tokens_BT, batch.lengths_B)
        probability_BC = _read(decoder.module, *rows, class_ids_C, common=common_tokens(*rows))
        probability_NC[batch.indices] = np.asarray(probability_BC)[: len(batch.indices)]
    return probability_NC


@functools.partial(jax.jit, static_argnames="common")
def _read(
    module: DecoderModule,
    tokens_BT: jax.Array,
    lengths_B: jax.Array,
    class_ids_C: jax.Array,
    *,
    common: int,
) -> jax.Array:
    logits_BV = passes.next_token_logits(module, tokens_BT, lengths_B, common=common)
    return jax.nn.softmax(jnp.take(logits_BV, class_ids_C, axis=1), axis=-1)
