"""Features of several documents of a query in one row: the shared prefix, then each document.

Document tokens see the prefix and their own document, at the positions they would have if they
followed the prefix directly. So the prefix is computed once, documents of different lengths are not
padded to one another, and rows differ in one length only, which keeps the programs few.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calibjax.backbone import attention
from calibjax.backbone.decoder import Adapting, DecoderModule, features_at
from calibjax.backbone.lora import Adapter


class Packed(NamedTuple):
    """One row per query, int32. segments_BT: 0 prefix, n = 1.. for document n, -1 padding;
    last_BN: place of each document's last token (0 where there is no such document); reach: bounds
    on the lengths of prefixes and documents, which save work."""

    tokens_BT: Any
    positions_BT: Any
    segments_BT: Any
    last_BN: Any
    reach: attention.Reach | None = None


def packed_features(
    module: DecoderModule,
    packed: Packed,
    *,
    adapter: Adapter | None = None,
    dropout_key: jax.Array | None = None,
    remat: str = "none",
) -> jax.Array:
    """`features` of every document's whole sequence (prefix and document), [B, N, D].

    Equal in value and gradient to separate sequences (without dropout, which draws one mask for
    the prefix). float32. Places without a document hold some finite value.
    """
    places_B1T = packed.positions_BT[:, None]
    near = attention.in_window(places_B1T, places_B1T, module.config.sliding_window)
    mask_B1TS = packed_mask(packed.segments_BT)[:, None] & near
    return features_at(
        module,
        packed.tokens_BT,
        packed.positions_BT,
        mask_B1TS,
        packed.last_BN,
        Adapting(adapter, dropout_key, remat),
        packed.reach,
    )


def packed_mask(segments_BT: jax.Array) -> jax.Array:
    """Who sees whom, bool [B, T, S]: earlier tokens of the prefix and of one's own document."""
    T = segments_BT.shape[1]
    keys_B1S, queries_BT1 = segments_BT[:, None, :], segments_BT[:, :, None]
    visible = (keys_B1S == 0) | (keys_B1S == queries_BT1)
    return visible & jnp.tril(jnp.ones((T, T), bool))[None]
