"""What a program does, read off its text: collectives of the compiled one, products of the traced.

XLA's own cost analysis counts the body of a loop once; here a loop counts as often as it runs.
"""

import math
import re
from collections import Counter
from typing import Any

from jax.extend.core import jaxprs_in_params

COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
)  # fmt: skip
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_COLLECTIVE = re.compile(r" (" + "|".join(COLLECTIVES) + r")(-start)?\(")
_CALLED = re.compile(r"(?:body|to_apply|calls|called_computations)=\{?%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def count_collectives(text: str) -> dict[str, int]:
    """How often each collective runs in one call of the program whose compiled text this is."""
    own: dict[str, Counter[str]] = {}
    called: dict[str, list[tuple[str, int]]] = {}
    name = entry = ""
    for line in text.splitlines():
        start = _COMPUTATION.match(line)
        if start:
            name = start[2]
            entry = name if start[1] else entry
            own[name], called[name] = Counter(), []
            continue
        if not name:
            continue
        found = _COLLECTIVE.search(line)
        if found:
            own[name][found[1]] += 1
        if "body=" in line or "calls=" in line or " call(" in line:
            trips = _TRIPS.search(line)
            times = int(trips[1]) if trips else 1
            called[name] += [(callee, times) for callee in _CALLED.findall(line)]

    def total(computation: str) -> Counter[str]:
        result = Counter(own.get(computation, ()))
        for callee, times in called.get(computation, ()):
            for kind, count in total(callee).items():
                result[kind] += times * count
        return result

    return {kind: count for kind, count in sorted(total(entry).items()) if count}


def matmul_flops(jaxpr: Any) -> int:
    """Floating-point operations of all matrix products of a traced program (two per term)."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return sum(_equation_flops(equation) for equation in jaxpr.eqns)


def _equation_flops(equation: Any) -> int:
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        terms = math.prod(shape[axis] for axis in contracted)
        return 2 * terms * math.prod(equation.outvars[0].aval.shape)
    times = equation.params["length"] if equation.primitive.name == "scan" else 1
    inner = [matmul_flops(each) for each in jaxprs_in_params(equation.params)]
    return times * sum(inner)
