"""Flax ports of the models: decoder (Llama family) and encoder (BERT family)."""

from typing import Any

from calibjax.backbone.load import Decoder, load_decoder

__all__ = ["Decoder", "load_decoder", "load_encoder"]


def load_encoder(source: Any, *, pooling: str | None = None, **options: Any) -> Any:
    """The `Encoder` at `source`; see `backbone.encoder.load_encoder`."""
    from calibjax.backbone.encoder import load_encoder as load

    return load(source, pooling=pooling, **options)
