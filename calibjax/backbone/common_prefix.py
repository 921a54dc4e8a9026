"""Rows that begin with the same tokens, with those computed once."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calibjax.backbone import attention, layers
from calibjax.backbone.config import DecoderConfig


class Rows(NamedTuple):
    """B rows of T tokens whose first `common` are the same, and those tokens held once, [1, X]."""

    B: int
    T: int
    common: int

    def join(self, x_BT: jax.Array) -> jax.Array:
        """The common tokens once, then the rows' own, [1, X]; as it is where none are common."""
        if not self.common:
            return x_BT
        own_1Y = x_BT[:, self.common :].reshape(1, -1)
        return jnp.concatenate([x_BT[:1, : self.common], own_1Y], axis=1)

    def split(self, x_1X: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The common tokens' part [1, common, ...] and the rows' own, [1, B, T - common, ...]."""
        own = x_1X[:, self.common :]
        return x_1X[:, : self.common], own.reshape(1, self.B, self.T - self.common, *own.shape[2:])

    def part(self, x_1X: jax.Array) -> jax.Array:
        """Whole rows again, [B, T, ...]."""
        if not self.common:
            return x_1X
        common, own = self.split(x_1X)
        common = jnp.broadcast_to(common, (self.B, *common.shape[1:]))
        return jnp.concatenate([common, own[0]], axis=1)

    def attend(self, config: DecoderConfig) -> layers.Attend:
        """Causal attention within the rows; keeps the keys and values of whole rows."""
        P, scale = self.common, config.attention_scale
        mask_11TT = attention.causal_mask(self.T, config.sliding_window)

        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
            common_q, own_q = self.split(q)
            kept = tuple(attention.heads_first(self.part(x)) for x in (k, v))
            common_k, common_v = (x_BGTh[:1, None, :, :P] for x_BGTh in kept)
            common = attention.KeyValues(common_k, common_v, mask_11TT[:, :, :P, :P])
            common_out = attention.attend_rows(common_q[:, None], common, scale=scale)
            whole = attention.KeyValues(kept[0][None], kept[1][None], mask_11TT[:, :, P:])
            own_out = attention.attend_rows(own_q, whole, first=P, scale=scale)
            own_1YHh = own_out.reshape(1, -1, *own_out.shape[3:])
            return jnp.concatenate([common_out[:, 0], own_1YHh], axis=1), kept

        return attend
