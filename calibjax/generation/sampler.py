"""Text generation with a local decoder: one prefill per prompt, batched decoding of its samples."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.backbone.load import Decoder
from calibjax.backbone.lora import Adapter
from calibjax.backbone.tokenizer import Prompt, Tokenizer
from calibjax.generation import decoding
from calibjax.generation.batches import Batch, plan
from calibjax.generation.names import content_names
from calibjax.generation.requests import Request
from calibjax.generation.results import Generation, cut_at
from calibjax.training import signals

# Room for generated tokens comes in multiples of this, so that nearby limits share a program.
_SLOTS = 16
# Decoding steps between two looks at signals and stop strings.
_STEPS_PER_LOOK = 8


class Sampler:
    """Generates with a decoder, and with an adapter on it if given.

    The samples of a prompt depend on the seed, its own tokens, its temperature and the truncation;
    never on the other prompts of a call. Equal prompts of one call get different samples.
    """

    def __init__(self, decoder: Decoder, adapter: Adapter | None = None) -> None:
        self._decoder = decoder
        self._adapter = adapter

    @property
    def decoder(self) -> Decoder:
        """The model itself, for read-outs that need no generation."""
        return self._decoder

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
        draws = decoding.Draws(
            decoding.uniform_numbers(request.seed, names[filled], num_samples, slots),
            jnp.asarray([request.temperatures[i] for i in filled], jnp.float32),
            None if request.top_p == 1.0 else jnp.float32(request.top_p),
            jnp.asarray(self.tokenizer.eos_ids, jnp.int32),
        )
        signals.check()
        models = (self._decoder.module, self._adapter)
        logits_BV, prefix = decoding.prefill(models, batch.tokens_BT, batch.lengths_B)
        state = decoding.first_tokens(models[0], logits_BV, draws, top_k=request.top_k)
        step = 1
        while step < request.max_new_tokens and not np.all(state.finished_BN):
            signals.check()
            limit = jnp.int32(min(step + _STEPS_PER_LOOK, request.max_new_tokens))
            state = decoding.advance(models, prefix, state, draws, limit, top_k=request.top_k)
            step = int(state.step)
            if request.stop:
                stopped_BN = self._stopped(state, request.stop)
                state = state._replace(finished_BN=jnp.asarray(stopped_BN))
        drawn = jax.device_get(state._replace(cache=None))
        return [
            [self._generation(drawn, b, n, request) for n in range(num_samples)]
            for b in range(len(chosen))
        ]

    def _stopped(self, state: decoding.State, stop: Sequence[str]) -> np.ndarray:
        """Which samples have ended, those whose text holds a stop string among them, [B, N]."""
        stopped_BN = np.array(state.finished_BN)
        tokens_BNS = np.asarray(state.tokens_BNS)[:, :, : int(state.step)]
        for b, n in zip(*np.nonzero(~stopped_BN)):
            text = self.tokenizer.decode(tokens_BNS[b, n].tolist())
            stopped_BN[b, n] = cut_at(text, stop) is not None
        return stopped_BN

    def _generation(
        self, drawn: decoding.State, b: int, n: int, request: Request
    ) -> Generation:
        ids = drawn.tokens_BNS[b, n, : int(drawn.step)].tolist()
        ends = [place for place, token in enumerate(ids) if token in self.tokenizer.eos_ids]
        body = ids[: ends[0]] if ends else ids
        text, size = self.tokenizer.decode(body), len(body) + bool(ends)
        reason = "stop" if ends else "length"
        place = cut_at(text, request.stop)
        if place is not None:
            size = self._tokens_until_stop(body, request.stop)
            text, reason = text[:place], "stop"
        return Generation(
            text,
            tuple(ids[:size]),
            tuple(drawn.log_probs_BNS[b, n, :size].tolist()),
            tuple(drawn.entropies_BNS[b, n, :size].tolist()),
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
    """What a prompt's samples depend on besides the seed and the truncation."""
    return [
        np.asarray(tokens, np.int32).tobytes() + repr(temperature).encode()
        for tokens, temperature in zip(ids, temperatures)
    ]
