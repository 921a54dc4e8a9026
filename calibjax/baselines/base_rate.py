"""A constant confidence: the share of right decisions among the labelled training rows."""

from collections.abc import Sequence

import numpy as np

from calibjax.records import SupervisionRow


def base_rate(rows: Sequence[SupervisionRow]) -> float:
    """Mean soft label, in [0, 1]."""
    return float(np.mean([row.label for row in rows]))
