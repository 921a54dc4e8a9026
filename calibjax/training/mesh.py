"""The mesh of devices: `data` and `fsdp` divide a batch, `fsdp` and `tensor` divide the weights."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from calibjax.errors import closest, input_error

DATA, FSDP, TENSOR = AXES = ("data", "fsdp", "tensor")

# Tokens that a CPU computes while it compiles one more program.
TOKENS_PER_PROGRAM = 2000
# Parameters of the largest backbone that every device holds whole: 8B in bfloat16 are 16 GB.
REPLICATED_UP_TO = 9_000_000_000


def parse_axes(text: str) -> dict[str, int]:
    """Axis sizes from "data=4,fsdp=2"; axes that are not named have size 1. Raises InputError."""
    axes = dict.fromkeys(AXES, 1)
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        if name not in axes:
            near = closest(name, AXES)
            fix = f"did you mean {near}" if near else "--mesh=data=4,fsdp=2"
            raise input_error("mesh", text, "sizes of data, fsdp and tensor", fix)
        if not size.isdecimal() or int(size) < 1:
            raise input_error(f"mesh: {name}", size, "a positive integer", f"--mesh={name}=2")
        axes[name] = int(size)
    return axes


def default_axes(num_parameters: int, num_devices: int) -> dict[str, int]:
    """Pure data parallelism for a backbone that a device can hold whole, else all on `fsdp`.

    A frozen backbone saves no optimizer state by being divided, and replicated it needs no gathers:
    all that moves is the gradient of the adapter.
    """
    axis = DATA if num_parameters <= REPLICATED_UP_TO else FSDP
    return dict.fromkeys(AXES, 1) | {axis: num_devices}


def make_mesh(axes: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """Mesh of the first devices, as many as the sizes ask for. Raises InputError for too many.

    With several processes every device must have a place: a process without one would not take
    part in the collectives.
    """
    devices = jax.devices() if devices is None else devices
    sizes = tuple(axes[name] for name in AXES)
    needed = prod(sizes)
    shown = ",".join(f"{name}={axes[name]}" for name in AXES if axes[name] > 1) or "data=1"
    if needed > len(devices) or (jax.process_count() > 1 and needed != len(devices)):
        most = "" if jax.process_count() > 1 else "at most "
        expected = f"{most}{len(devices)} devices, found sizes for {needed}"
        raise input_error("mesh", shown, expected, f"--mesh=data={len(devices)}")
    return jax.make_mesh(
        sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=list(devices[:needed])
    )


def mesh_of(tree: Any) -> Mesh:
    """The mesh that the arrays of a tree lie on; one of a single device where they name none."""
    leaf = jax.tree.leaves(tree)[0]
    if isinstance(leaf.sharding, NamedSharding) and isinstance(leaf.sharding.mesh, Mesh):
        return leaf.sharding.mesh
    return make_mesh(dict.fromkeys(AXES, 1), sorted(leaf.devices(), key=lambda d: d.id)[:1])


def batch_shards(mesh: Mesh) -> int:
    """How many parts a batch is divided into."""
    return mesh.shape[DATA] * mesh.shape[FSDP]


def length_multiple(mesh: Mesh) -> int:
    """What padded lengths are multiples of: matrix units take 128 tokens, a CPU wastes less on 16.

    128 also keeps cuDNN's attention off lengths of 64 modulo 128, where masked gradients were NaN
    on Hopper (pytorch#196678).
    """
    return 16 if mesh.devices.flat[0].platform == "cpu" else 128


def tokens_per_program(mesh: Mesh) -> int:
    """Tokens that a device could compute while one more program is compiled: half a minute's worth
    on an accelerator, where a step is traced and tuned for longer than it is on a CPU."""
    return TOKENS_PER_PROGRAM if mesh.devices.flat[0].platform == "cpu" else 2_000_000


def divide_batch(x: jax.Array) -> jax.Array:
    """Holds the leading dimension divided over the devices of the mesh that is set, if any.

    Left to itself, the compiler may rather divide the features of activations by `fsdp`, as the
    weights are, and exchange activations at every product.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not {DATA, FSDP} <= set(mesh.axis_names):
        return x
    shards = mesh.shape[DATA] * mesh.shape[FSDP]
    if shards == 1 or x.shape[0] % shards:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec((DATA, FSDP)))
