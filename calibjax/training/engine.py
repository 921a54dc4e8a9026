"""How training runs on a machine; what it learns is the preset's."""

from typing import NamedTuple

from calibjax.training.journal import MAX_BAD_IN_A_ROW
from calibjax.training.trackers import Several


class Engine(NamedTuple):
    """remat: what the backward pass recomputes (`backbone.remat.POLICIES`). keep: newest
    checkpoints that stay. asynchronous: save while training goes on. max_bad_in_a_row: batches that
    are not finite before the run stops; 1 stops at the first. hang_seconds: a step that takes
    longer (and longer than 20 usual ones) ends the process; None never does. peak_flops: operations
    a second of one device, for the utilisation; None takes it from `perf.flops.peak_flops`.
    """

    remat: str = "save_qkv_context_mlp"
    keep: int = 2
    asynchronous: bool = False
    max_bad_in_a_row: int = MAX_BAD_IN_A_ROW
    hang_seconds: float | None = None
    peak_flops: float | None = None
    trackers: Several = Several({})
