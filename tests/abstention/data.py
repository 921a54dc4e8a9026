"""Synthetic regimes: queries whose success depends on known features of their score lists."""

import numpy as np

from calibjax.abstention.examples import Example


def make_examples(n, seed=0, *, slope=2.0, driver="hop1", with_hop2=True, prefix="q"):
    """n examples; success ~ Bernoulli(sigmoid(slope x)), where x shifts the best score of `driver`.

    driver: hop1, hop2, length (longer questions fail), or none (success depends on nothing).
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    success = rng.random(n) < 1 / (1 + np.exp(-slope * (x if driver != "none" else 0 * x)))
    made = []
    for i in range(n):
        lists = {}
        for name in ("hop1", "hop2"):
            rest = rng.uniform(0.0, 0.4, 11)
            shift = x[i] if driver == name else rng.normal()
            lists[name] = sorted([0.6 + 0.05 * shift, *rest], reverse=True)
        length = 12 - 3 * x[i] if driver == "length" else rng.integers(5, 20)
        made.append(
            Example(
                id=f"{prefix}{i}",
                hop1_scores=tuple(lists["hop1"]),
                success=float(success[i]),
                question=" ".join(["word"] * max(1, round(float(length)))),
                hop2_scores=(tuple(lists["hop2"]),) if with_hop2 else None,
            )
        )
    return made
