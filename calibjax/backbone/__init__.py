"""Flax ports of the models: decoder (Llama family) and encoder (BERT family)."""

from calibjax.backbone.load import Decoder

__all__ = ["Decoder"]
