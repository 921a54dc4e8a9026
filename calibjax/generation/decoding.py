"""The device side of sampling: prefill, first tokens, and the loop over decoding steps."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.backbone import continuation as passes
from calibjax.backbone.decoder import DecoderModule
from calibjax.backbone.lora import Adapter
from calibjax.generation import sampling
from calibjax.generation.batches import MAX_ROWS

# A decoder and the adapter on it, if any.
Models = tuple[DecoderModule, Adapter | None]


class Draws(NamedTuple):
    """What decides the samples besides the model."""

    uniform_BNS2: jax.Array
    temperature_B: jax.Array
    top_p: jax.Array | None
    eos_E: jax.Array


class State(NamedTuple):
    """The tokens so far: `step` of them, the last not yet fed to the model."""

    step: jax.Array
    finished_BN: jax.Array
    tokens_BNS: jax.Array
    log_probs_BNS: jax.Array
    entropies_BNS: jax.Array
    cache: passes.SuffixCache


def uniform_numbers(seed: int, names_B2: np.ndarray, num_samples: int, slots: int) -> jax.Array:
    """Two numbers in [0, 1) per prompt, sample and step, [B, N, slots, 2].

    Computed for a padded number of rows, so that all batch sizes share one program.
    """
    B = len(names_B2)
    count = B * num_samples
    names_R3 = np.zeros((-(-count // MAX_ROWS) * MAX_ROWS, 3), np.uint32)
    names_R3[:count, :2] = np.repeat(names_B2, num_samples, axis=0)
    names_R3[:count, 2] = np.tile(np.arange(num_samples, dtype=np.uint32), B)
    uniform_RS2 = np.asarray(_uniform_rows(jax.random.key(seed), names_R3, slots))
    return jnp.asarray(uniform_RS2[:count].reshape(B, num_samples, slots, 2))


@functools.partial(jax.jit, static_argnums=2)
def _uniform_rows(root: jax.Array, names_R3: jax.Array, slots: int) -> jax.Array:
    """[R, slots, 2]; a row's name (two words, sample) and then the step are folded into the key."""

    def row(name_3: jax.Array) -> jax.Array:
        key = functools.reduce(jax.random.fold_in, name_3, root)
        steps = jnp.arange(slots, dtype=jnp.uint32)
        return jax.vmap(lambda step: jax.random.uniform(jax.random.fold_in(key, step), (2,)))(steps)

    return jax.vmap(row)(names_R3)


@functools.partial(jax.jit, static_argnames="common")
def prefill(
    models: Models, tokens_BT: jax.Array, lengths_B: jax.Array, *, common: int = 0
) -> tuple[jax.Array, passes.PrefixCache]:
    """Next-token logits [B, V] of the prompts, and their keys and values."""
    module, adapter = models
    return passes.prefill(module, tokens_BT, lengths_B, adapter=adapter, common=common)


@jax.jit
def spread(
    rows_B: jax.Array, logits_UV: jax.Array, prefix: passes.PrefixCache
) -> tuple[jax.Array, passes.PrefixCache]:
    """What `prefill` gives for the prompts `rows_B` of those that it was run on."""
    return _take(logits_UV, rows_B), _prefix_of(prefix, rows_B)


@jax.jit
def keep_rows(
    rows_B: jax.Array, prefix: passes.PrefixCache, state: State, draws: Draws
) -> tuple[passes.PrefixCache, State, Draws]:
    """Everything of the prompts `rows_B` alone."""
    cache = passes.SuffixCache(*(_take(x, rows_B, axis=1) for x in state.cache))
    names = ("finished_BN", "tokens_BNS", "log_probs_BNS", "entropies_BNS")
    kept = {name: _take(getattr(state, name), rows_B) for name in names}
    draws = draws._replace(
        uniform_BNS2=_take(draws.uniform_BNS2, rows_B),
        temperature_B=_take(draws.temperature_B, rows_B),
    )
    return _prefix_of(prefix, rows_B), state._replace(cache=cache, **kept), draws


def _prefix_of(prefix: passes.PrefixCache, rows_B: jax.Array) -> passes.PrefixCache:
    stack = (_take(x, rows_B, axis=1) for x in prefix.blocks)
    rest = jax.tree.map(functools.partial(_take, rows_B=rows_B), prefix[1:])
    return passes.PrefixCache(passes.KeysValues(*stack), *rest)


def _take(x: jax.Array, rows_B: jax.Array, *, axis: int = 0) -> jax.Array:
    return jnp.take(x, rows_B, axis=axis, mode="clip")


@functools.partial(jax.jit, static_argnames=("top_k",))
def first_tokens(
    module: DecoderModule, logits_BV: jax.Array, draws: Draws, *, top_k: int | None
) -> State:
    """The state after the first token of every sample. A program apart, as no length is in it."""
    B, N, slots = draws.uniform_BNS2.shape[:3]
    empty = jnp.zeros((B, N, slots), jnp.float32)
    dtype = module.embedding[...].dtype
    state = State(
        jnp.int32(0),
        jnp.zeros((B, N), bool),
        empty.astype(jnp.int32),
        empty,
        empty,
        passes.empty_suffix_cache(module.config, B, N, slots, dtype=dtype),
    )
    logits_BNV = jnp.broadcast_to(logits_BV[:, None], (B, N, logits_BV.shape[-1]))
    return _append(state, logits_BNV, draws, top_k)


@functools.partial(jax.jit, static_argnames=("top_k",), donate_argnums=2)
def advance(
    models: Models,
    prefix: passes.PrefixCache,
    state: State,
    draws: Draws,
    limit: jax.Array,
    *,
    top_k: int | None,
) -> State:
    """Decodes until there are `limit` tokens of every sample or all have ended."""
    module, adapter = models

    def unfinished(state: State) -> jax.Array:
        return (state.step < limit) & ~state.finished_BN.all()

    def step(state: State) -> State:
        fed = state.step - 1
        tokens_BN = jax.lax.dynamic_index_in_dim(state.tokens_BNS, fed, axis=2, keepdims=False)
        logits_BNV, cache = passes.decode_step(
            module, tokens_BN, fed, prefix, state.cache, adapter=adapter
        )
        return _append(state._replace(cache=cache), logits_BNV, draws, top_k)

    return jax.lax.while_loop(unfinished, step, state)


def _append(state: State, logits_BNV: jax.Array, draws: Draws, top_k: int | None) -> State:
    """Draws the next token of every sample; those that have ended go on, unread."""
    B, N, V = logits_BNV.shape
    logits_RV = logits_BNV.reshape(B * N, V)
    uniform_BN2 = jax.lax.dynamic_index_in_dim(draws.uniform_BNS2, state.step, 2, keepdims=False)
    temperature_R = jnp.repeat(draws.temperature_B, N)
    tokens_R = sampling.sample(
        uniform_BN2.reshape(B * N, 2), logits_RV, temperature_R, top_k=top_k, top_p=draws.top_p
    )
    log_prob_R, entropy_R = sampling.log_prob_and_entropy(logits_RV, tokens_R)
    ended_R = (tokens_R[:, None] == draws.eos_E[None]).any(axis=-1)
    new = {"tokens_BNS": tokens_R, "log_probs_BNS": log_prob_R, "entropies_BNS": entropy_R}
    filled = {
        name: jax.lax.dynamic_update_index_in_dim(
            getattr(state, name), new_R.reshape(B, N), state.step, axis=2
        )
        for name, new_R in new.items()
    }
    finished_BN = state.finished_BN | ended_R.reshape(B, N)
    return state._replace(step=state.step + 1, finished_BN=finished_BN, **filled)
