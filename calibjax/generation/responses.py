"""Chat completions as servers send them: every shape checked before it is believed."""

import json
import math
from typing import Any

from calibjax.generation.results import Generation
from calibjax.generation.retry import Retryable


def parse_body(content: bytes) -> dict[str, Any]:
    """A response body, {} if it is no object. Raises Retryable if it is not JSON."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        start = content[:40].decode("utf-8", "replace")
        raise Retryable(f"the answer is not JSON ({start!r})") from error
    return body if isinstance(body, dict) else {}


def samples_of(body: dict[str, Any], num_samples: int) -> list[Generation]:
    """The samples of a parsed body. Raises Retryable if they are not what was asked for."""
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != num_samples:
        found = len(choices) if isinstance(choices, list) else 0
        raise Retryable(f"{found} samples in the answer, {num_samples} asked for")
    return [_sample(choice) for choice in choices]


def _sample(choice: Any) -> Generation:
    try:
        text, reason = choice["message"]["content"], choice.get("finish_reason")
        tokens = (choice.get("logprobs") or {}).get("content") or []
        log_probs = tuple(float(token["logprob"]) for token in tokens)
        entropies = tuple(_entropy(token.get("top_logprobs") or []) for token in tokens)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise Retryable(f"a sample of another shape ({type(error).__name__}: {error})") from error
    if not isinstance(text, str):
        raise Retryable(f"a sample whose content is {type(text).__name__}, not text")
    return Generation(
        text, (), log_probs, entropies, str(reason or "stop"), approximate=bool(entropies)
    )


def _entropy(top: list[dict[str, Any]]) -> float:
    """Entropy in nats of the listed tokens and of the rest taken as one token."""
    probabilities = [math.exp(float(token["logprob"])) for token in top]
    probabilities.append(max(0.0, 1.0 - sum(probabilities)))
    return -sum(p * math.log(p) for p in probabilities if p > 0.0)
