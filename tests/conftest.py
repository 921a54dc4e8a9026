"""Every test runs with strict dtype and rank promotion on eight simulated CPU devices."""

import os
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Nearly all of a small test is compilation, and this halves it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Raised inside third-party packages at import; nothing of ours can mend them.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(?!calibjax|tests)")
        warnings.filterwarnings("ignore", category=ImportWarning)
        yield
