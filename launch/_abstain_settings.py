"""How `launch.abstain` fits and judges: its thresholds, levels and replicates, as flags."""

from typing import Any

from absl import flags

from launch._flags import MIN_REPLICATES

TARGET = flags.DEFINE_float(
    "target", 0.25, "share of failures to keep below", lower_bound=0.0, upper_bound=1.0
)
DELTA = flags.DEFINE_float(
    "delta", 0.1, "how often `certified` may miss it", lower_bound=0.001, upper_bound=0.999
)
N_MIN = flags.DEFINE_integer("n_min", 60, "rows before its first test", lower_bound=1)
ALPHA = flags.DEFINE_float(
    "conformal_alpha", 0.1, "level of split conformal", lower_bound=0.0, upper_bound=1.0
)
COVERAGE = flags.DEFINE_float(
    "rescue_coverage", 0.8, "share that is not rescued", lower_bound=0.0, upper_bound=1.0
)
BELOW = flags.DEFINE_string(
    "below", "abstain", "what to do below the threshold: abstain or escalate:PIPELINE"
)
PLATT = flags.DEFINE_boolean("platt", False, "probabilities for signals that are none, too")
REPLICATES = flags.DEFINE_integer(
    "replicates", 2000, "bootstrap replicates", lower_bound=MIN_REPLICATES
)


def settings() -> Any:
    """`Settings` of the flags."""
    from calibjax.abstention.fitting import Settings

    return Settings(
        seed=flags.FLAGS.seed,
        replicates=REPLICATES.value,
        target=TARGET.value,
        delta=DELTA.value,
        n_min=N_MIN.value,
        alpha=ALPHA.value,
        rescue_coverage=COVERAGE.value,
        below=BELOW.value,
        platt=PLATT.value,
    )
