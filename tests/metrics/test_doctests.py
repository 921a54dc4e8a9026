"""Every example in a docstring of calibjax.metrics runs and prints what it says."""

import doctest
import importlib
import pathlib
import pkgutil

import jax
import pytest

import calibjax.metrics

MODULES = [module.name for module in pkgutil.iter_modules(calibjax.metrics.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name):
    module = importlib.import_module(f"calibjax.metrics.{name}")
    # Users write examples under JAX's default promotion, not under the strict one of the tests.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        result = doctest.testmod(module)
    assert result.failed == 0


def test_the_page_for_users_prints_what_it_says():
    page = pathlib.Path(__file__).parents[2] / "docs" / "metrics.md"
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 10 and result.failed == 0


def test_every_public_function_has_an_example():
    helpers = {"frontier_study"}  # its example is in docs/metrics.md
    missing = []
    for name in calibjax.metrics.__all__:
        thing = getattr(calibjax.metrics, name)
        if not isinstance(thing, type) and not name.endswith("_details") and name not in helpers:
            if ">>>" not in thing.__doc__:
                missing.append(name)
    assert missing == []
