"""Is there room for checkpoints, and which errors say that there is none."""

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from calibjax.errors import input_error

# What a full disk, a quota and a limit on file sizes are called.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException) -> bool:
    """Whether a write failed for want of room; orbax tells it in words alone."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    texts = ("No space left", "File too large", "quota exceeded", "RESOURCE_EXHAUSTED")
    return any(text in str(error) for text in texts)


def bytes_needed(arrays: Mapping[str, np.ndarray]) -> int:
    """Bytes of a checkpoint on disk, with what its many small files take."""
    return sum(array.nbytes for array in arrays.values()) + 2**18


def full_error(path: Path, needed: int, error: BaseException) -> OSError:
    """The same error with path and bytes needed, where whoever wrote told neither."""
    if isinstance(error, OSError) and error.errno:
        number = error.errno
    else:
        number = errno.EFBIG if "File too large" in str(error) else errno.ENOSPC
    room = f", {needed / 2**20:.1f} MiB needed" if needed else ""
    return OSError(number, f"{os.strerror(number)}{room}", str(path))


def check_room(directory: Path, state: Any) -> None:
    """Raises InputError when the disk cannot hold three checkpoints of `state`."""
    directory = directory.absolute()
    needed = 3 * sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        found = f"{free / 2**20:.1f} MiB free"
        expected = f"{needed / 2**20:.1f} MiB for three checkpoints"
        raise input_error("out", f"{directory} ({found})", expected, "free some space")
