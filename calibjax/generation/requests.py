"""The sampling arguments of `generate`, checked once for every generator."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibjax.errors import input_error


class Request(NamedTuple):
    """Checked arguments; `temperatures` has one entry per prompt."""

    max_new_tokens: int
    temperatures: list[float]
    top_k: int | None
    top_p: float
    num_samples: int
    stop: tuple[str, ...]
    seed: int

    @classmethod
    def checked(
        cls,
        count: int,
        max_new_tokens: int,
        temperature: float | Sequence[float],
        top_k: int | None,
        top_p: float,
        num_samples: int,
        stop: Sequence[str] | None,
        seed: int,
    ) -> "Request":
        """Raises InputError naming the argument that is out of range."""
        for name, value in (("max_new_tokens", max_new_tokens), ("num_samples", num_samples)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise input_error(name, value, "an integer >= 1")
        if top_k is not None and (not isinstance(top_k, int) or top_k < 1):
            raise input_error("top_k", top_k, "an integer >= 1, or None for the whole vocabulary")
        if not 0.0 < top_p <= 1.0:
            raise input_error("top_p", top_p, "a probability in (0, 1]")
        if not 0 <= seed < 2**63:
            raise input_error("seed", seed, "an integer in 0..2**63-1")
        words = (stop,) if isinstance(stop, str) else tuple(stop or ())
        if "" in words:
            raise input_error("stop", list(words), "texts that are not empty")
        temperatures = _temperatures(temperature, count)
        return cls(max_new_tokens, temperatures, top_k, float(top_p), num_samples, words, seed)

    def check_room(self, prompts: Sequence[Sequence[int]], positions: int) -> None:
        """Raises InputError if a prompt and its answer pass the decoder's positions."""
        longest = max((len(ids) for ids in prompts), default=0)
        if longest + self.max_new_tokens > positions:
            raise input_error(
                "prompt",
                f"{longest} tokens",
                f"at most {positions - self.max_new_tokens} (positions - max_new_tokens)",
                "shorten the passage or lower max_new_tokens",
            )


def _temperatures(temperature: float | Sequence[float], count: int) -> list[float]:
    values = np.asarray(temperature, np.float64)
    if values.ndim > 1 or (values.ndim == 1 and len(values) != count):
        shape = list(values.shape)
        raise input_error("temperature", f"shape {shape}", f"a number or one per prompt ({count})")
    if not (np.isfinite(values) & (values >= 0.0)).all():
        raise input_error("temperature", temperature, "finite numbers >= 0")
    return [float(value) for value in np.broadcast_to(values, (count,))]
