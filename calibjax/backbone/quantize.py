"""int8 weights of the frozen decoder: a quarter of float32's memory, another model by a little.

Only the projections inside blocks are rounded; embedding, norms and biases stay. Each output has a
scale of its own, w = scale * q with q in -127..127. What is stored shrinks, what is computed does
not: products run in the decoder's own type, in which such whole numbers are exact.
"""

from typing import Any

import numpy as np

# The last path component of a scale, beside its `kernel`.
SCALE = "kernel_scale"
_LARGEST = 127


def leaves(path: str, value: np.ndarray, dtype: Any) -> dict[str, np.ndarray]:
    """What stands for the parameter at `path`, float32 [..., in, out]: int8 and scale, or itself.

    Everything that is not a projection of a block comes back in `dtype`.
    """
    if not path.startswith(("blocks.", "last_block.")) or not path.endswith(".kernel"):
        return {path: value.astype(dtype)}
    whole, scale = rounded(value)
    return {path: whole, path.removesuffix("kernel") + SCALE: scale}


def rounded(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 [..., in, out] and float32 scales [..., out]; off by half a scale at most."""
    scale = np.abs(kernel).max(axis=-2) / np.float32(_LARGEST)
    scale = np.where(scale > 0, scale, np.float32(1.0)).astype(np.float32)
    return np.rint(kernel / scale[..., None, :]).astype(np.int8), scale
