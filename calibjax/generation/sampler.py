"""Text generation with a local decoder: one prefill per prompt, batched decoding of its samples."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.backbone import decoder as passes
from calibjax.backbone.load import Decoder
from calibjax.backbone.lora import Adapter
from calibjax.backbone.tokenizer import Prompt, Tokenizer
from calibjax.generation import sampling
from calibjax.generation.batches import Batch, plan
from calibjax.generation.names import content_names
from calibjax.generation.requests import Request
from calibjax.generation.results import Generation, cut_at
from calibjax.training import signals

# Room for generated tokens comes in multiples of this, so that nearby limits share a program.
_SLOTS = 16
# Decoding steps between two looks at the text for stop strings.
_STEPS_PER_LOOK = 8


class _Rows(NamedTuple):
    """What decides the samples of the prompts of a batch besides the model."""

    keys_BN: jax.Array
    temperature_B: jax.Array
    top_p: jax.Array | None
    eos_E: jax.Array


class _State(NamedTuple):
    """The tokens so far; `step` of them, the last not yet fed to the model."""

    step: jax.Array
    finished_BN: jax.Array
    tokens_BNS: jax.Array
    log_probs_BNS: jax.Array
    entropies_BNS: jax.Array
    cache: passes.SuffixCache


class Sampler:
    """Generates with a decoder, and with an adapter on it if given.

    The samples of a prompt depend on the seed, its own tokens, its temperature and the truncation;
    never on the other prompts of a call. Equal prompts of one call get different samples.
    """

    def __init__(self, decoder: Decoder, adapter: Adapter | None = None) -> None:
        self._decoder = decoder
        self._adapter = adapter

    @property
    def tokenizer(self) -> Tokenizer:
        return self._decoder.tokenizer

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int,
        temperature: float | Sequence[float] = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        num_samples: int = 1,
        stop: Sequence[str] | None = None,
        seed: int = 0,
        return_details: bool = False,
    ) -> Any:
        """Texts [prompt][sample], or `Generation`s with `return_details`.

        A prompt is a list of chat messages, a text (one user message) or a list of token ids.
        temperature: one for all or one per prompt; 0 takes the likeliest token. Stop strings end a
        text before them. Raises InputError for arguments out of range and for prompts that leave no
        room for `max_new_tokens`.
        """
        request = Request.checked(
            len(prompts), max_new_tokens, temperature, top_k, top_p, num_samples, stop, seed
        )
        ids = [self.tokenizer.encode_prompt(prompt) for prompt in prompts]
        request.check_room(ids, self._decoder.config.max_positions)
        names = content_names(_contents(ids, request.temperatures))
        results: list[list[Generation]] = [[] for _ in ids]
        # Greedy samples of a prompt are all the same: one is computed.
        for greedy in (False, True):
            members = [i for i, t in enumerate(request.temperatures) if (t == 0.0) is greedy]
            samples = 1 if greedy else num_samples
            pad_id = self.tokenizer.pad_id
            for batch in plan([ids[i] for i in members], num_samples=samples, pad_id=pad_id):
                signals.check()
                chosen = [members[i] for i in batch.indices]
                for i, found in zip(chosen, self._run(batch, chosen, names, samples, request)):
                    results[i] = found * (num_samples // samples)
        if return_details:
            return results
        return [[sample.text for sample in samples] for samples in results]

    def _run(
        self,
        batch: Batch,
        chosen: list[int],
        names: np.ndarray,
        num_samples: int,
        request: Request,
    ) -> list[list[Generation]]:
        """The samples of one batch; `chosen` are the places of its prompts in the call."""
        filled = chosen + [chosen[0]] * (len(batch.lengths_B) - len(chosen))
        slots = -(-request.max_new_tokens // _SLOTS) * _SLOTS
        rows = _Rows(
            _sample_keys(jax.random.key(request.seed), names[filled], num_samples),
            jnp.asarray([request.temperatures[i] for i in filled], jnp.float32),
            None if request.top_p == 1.0 else jnp.float32(request.top_p),
            jnp.asarray(self.tokenizer.eos_ids, jnp.int32),
        )
        models = (self._decoder.module, self._adapter)
        prefix, state = _start(
            models, batch.tokens_BT, batch.lengths_B, rows, slots=slots, top_k=request.top_k
        )
        looks = _STEPS_PER_LOOK if request.stop else request.max_new_tokens
        limit = 1
        while limit < request.max_new_tokens and not state.finished_BN.all():
            limit = min(limit + looks, request.max_new_tokens)
            state = _advance(models, prefix, state, rows, jnp.int32(limit), top_k=request.top_k)
            if request.stop:
                signals.check()
                state = state._replace(finished_BN=self._stopped(state, request.stop))
        return self._collect(jax.device_get(state._replace(cache=None)), len(chosen), request.stop)

    def _stopped(self, state: _State, stop: Sequence[str]) -> jax.Array:
        """`finished_BN` with the samples whose text holds a stop string."""
        finished_BN = np.array(state.finished_BN)
        tokens_BNS, step = np.asarray(state.tokens_BNS), int(state.step)
        for b, n in zip(*np.nonzero(~finished_BN)):
            text = self.tokenizer.decode(tokens_BNS[b, n, :step].tolist())
            finished_BN[b, n] = cut_at(text, stop) is not None
        return jnp.asarray(finished_BN)

    def _collect(self, state: _State, count: int, stop: Sequence[str]) -> list[list[Generation]]:
        return [
            [self._generation(state, b, n, stop) for n in range(state.tokens_BNS.shape[1])]
            for b in range(count)
        ]

    def _generation(self, state: _State, b: int, n: int, stop: Sequence[str]) -> Generation:
        ids = state.tokens_BNS[b, n, : int(state.step)].tolist()
        ends = [place for place, token in enumerate(ids) if token in self.tokenizer.eos_ids]
        reason = "stop" if ends else "length"
        body = ids[: ends[0]] if ends else ids
        text, size = self.tokenizer.decode(body), len(body) + bool(ends)
        place = cut_at(text, stop)
        if place is not None:
            size = self._tokens_until_stop(body, stop)
            text, reason = text[:place], "stop"
        return Generation(
            text,
            tuple(ids[:size]),
            tuple(state.log_probs_BNS[b, n, :size].tolist()),
            tuple(state.entropies_BNS[b, n, :size].tolist()),
            reason,
        )

    def _tokens_until_stop(self, ids: list[int], stop: Sequence[str]) -> int:
        """How many tokens it took to complete the first stop string."""
        return next(
            size
            for size in range(1, len(ids) + 1)
            if cut_at(self.tokenizer.decode(ids[:size]), stop) is not None
        )


def _contents(ids: list[list[int]], temperatures: Sequence[float]) -> list[bytes]:
    """What a prompt's samples depend on besides the seed."""
    return [
        np.asarray(tokens, np.int32).tobytes() + repr(temperature).encode()
        for tokens, temperature in zip(ids, temperatures)
    ]


@functools.partial(jax.jit, static_argnums=2)
def _sample_keys(root: jax.Array, names_B2: jax.Array, num_samples: int) -> jax.Array:
    """One key per prompt and sample, [B, N]."""
    samples_N = jnp.arange(num_samples, dtype=jnp.uint32)

    def prompt_keys(name_2: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(root, name_2[0]), name_2[1])
        return jax.vmap(functools.partial(jax.random.fold_in, key))(samples_N)

    return jax.vmap(prompt_keys)(names_B2)


@functools.partial(jax.jit, static_argnames=("slots", "top_k"))
def _start(
    models: tuple[passes.DecoderModule, Adapter | None],
    tokens_BT: jax.Array,
    lengths_B: jax.Array,
    rows: _Rows,
    *,
    slots: int,
    top_k: int | None,
) -> tuple[passes.PrefixCache, _State]:
    """Prefill and the first token of every sample."""
    module, adapter = models
    logits_BV, prefix = passes.prefill(module, tokens_BT, lengths_B, adapter=adapter)
    B, N = rows.keys_BN.shape
    empty = jnp.zeros((B, N, slots), jnp.float32)
    state = _State(
        jnp.int32(0),
        jnp.zeros((B, N), bool),
        empty.astype(jnp.int32),
        empty,
        empty,
        passes.empty_suffix_cache(module.config, B, N, slots, dtype=prefix.k_LBGPh.dtype),
    )
    logits_BNV = jnp.broadcast_to(logits_BV[:, None], (B, N, logits_BV.shape[-1]))
    return prefix, _append(state, logits_BNV, rows, top_k)


@functools.partial(jax.jit, static_argnames=("top_k",), donate_argnums=2)
def _advance(
    models: tuple[passes.DecoderModule, Adapter | None],
    prefix: passes.PrefixCache,
    state: _State,
    rows: _Rows,
    limit: jax.Array,
    *,
    top_k: int | None,
) -> _State:
    """Decodes until `limit` tokens are there or every sample has ended."""
    module, adapter = models

    def unfinished(state: _State) -> jax.Array:
        return (state.step < limit) & ~state.finished_BN.all()

    def step(state: _State) -> _State:
        fed = state.step - 1
        tokens_BN = jax.lax.dynamic_index_in_dim(state.tokens_BNS, fed, axis=2, keepdims=False)
        logits_BNV, cache = passes.decode_step(
            module, tokens_BN, fed, prefix, state.cache, adapter=adapter
        )
        return _append(state._replace(cache=cache), logits_BNV, rows, top_k)

    return jax.lax.while_loop(unfinished, step, state)


def _append(state: _State, logits_BNV: jax.Array, rows: _Rows, top_k: int | None) -> _State:
    """Draws the next token of every sample; finished ones go on, unread."""
    B, N, V = logits_BNV.shape
    logits_RV = logits_BNV.reshape(B * N, V)
    keys_BN = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, state.step)))(rows.keys_BN)
    temperature_R = jnp.repeat(rows.temperature_B, N)
    tokens_R = sampling.sample(
        keys_BN.reshape(B * N), logits_RV, temperature_R, top_k=top_k, top_p=rows.top_p
    )
    log_prob_R, entropy_R = sampling.log_prob_and_entropy(logits_RV, tokens_R)
    ended_R = (tokens_R[:, None] == rows.eos_E[None]).any(axis=-1)
    drawn = {"tokens_BNS": tokens_R, "log_probs_BNS": log_prob_R, "entropies_BNS": entropy_R}
    filled = {
        name: jax.lax.dynamic_update_index_in_dim(
            getattr(state, name), new_R.reshape(B, N), state.step, axis=2
        )
        for name, new_R in drawn.items()
    }
    finished_BN = state.finished_BN | ended_R.reshape(B, N)
    return state._replace(step=state.step + 1, finished_BN=finished_BN, **filled)
