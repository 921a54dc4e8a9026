"""Chat completions as servers send them: every shape checked before it is believed."""

import json
import math
from typing import Any

from calibjax.generation.results import Generation
from calibjax.generation.retry import Retryable


def parse_completion(content: bytes, num_samples: int) -> list[Generation]:
    """The samples of a response body. Raises Retryable if it is not what was asked for."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        start = content[:40].decode("utf-8", "replace")
        raise Retryable(f"the answer is not JSON ({start!r})") from error
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or len(choices) != num_samples:
        found = len(choices) if isinstance(choices, list) else 0
        raise Retryable(f"{found} samples in the answer, {num_samples} asked for")
    return [_sample(choice) for choice in choices]


def usage_of(content: bytes) -> Any:
    """What a response body says of its token counts, or None."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return body.get("usage") if isinstance(body, dict) else None


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
