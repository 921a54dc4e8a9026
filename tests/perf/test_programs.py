"""Counts of collectives and of products, loops included, against programs counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from calibjax.perf.programs import count_collectives, matmul_flops
from calibjax.training.mesh import make_mesh, parse_axes


def test_products_are_counted_as_often_as_a_loop_runs_them():
    a, b = jnp.ones((3, 4)), jnp.ones((4, 4))

    def program(a, b):
        def body(x, _):
            return jax.jit(lambda x: x @ b)(x), None

        return jax.lax.scan(body, a, length=7)[0]

    assert matmul_flops(jax.make_jaxpr(program)(a, b)) == 7 * 2 * 3 * 4 * 4
    grad = jax.make_jaxpr(jax.grad(lambda a: program(a, b).sum()))(a)
    assert matmul_flops(grad) == 2 * 7 * 2 * 3 * 4 * 4
    again = jax.make_jaxpr(jax.grad(lambda a: jax.checkpoint(program)(a, b).sum()))(a)
    assert matmul_flops(again) >= 2 * 7 * 2 * 3 * 4 * 4


def test_batched_products_count_every_batch():
    a, b = jnp.ones((5, 3, 4)), jnp.ones((5, 4, 2))
    program = jax.make_jaxpr(lambda a, b: jnp.einsum("bij,bjk->bik", a, b))
    assert matmul_flops(program(a, b)) == 5 * 2 * 3 * 4 * 2


def test_collectives_are_counted_as_often_as_a_loop_runs_them():
    mesh = make_mesh(parse_axes("data=2,fsdp=4"))
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    x = jax.device_put(np.ones((4, 8), np.float32), rows)

    def in_a_loop(x):
        def body(total, _):
            # The sum over all rows is needed before the next turn.
            return jnp.sin(total + jnp.sum(x * total[None], axis=0)), None

        return jax.lax.scan(body, jnp.ones(8), length=5)[0]

    def once(x):
        return jnp.sum(x, axis=0)

    def compiled(function):
        return jax.jit(function, in_shardings=rows, out_shardings=whole).lower(x).compile()

    assert count_collectives(compiled(once).as_text()) == {"all-reduce": 1}
    assert count_collectives(compiled(in_a_loop).as_text()) == {"all-reduce": 5}
    alone = jax.jit(once).lower(np.ones((4, 8), np.float32)).compile()
    assert count_collectives(alone.as_text()) == {}
