"""Names of prompts that do not depend on where in a call, or in which call, they are asked."""

import hashlib
from collections import Counter
from collections.abc import Iterable

import numpy as np


def content_names(contents: Iterable[bytes]) -> np.ndarray:
    """Two words per prompt from its content and its rank among equals, uint32 [n, 2].

    Samples seeded by them are the same when work is split or resumed as when it is done at once.
    """
    seen: Counter[bytes] = Counter()
    names = []
    for content in contents:
        digest = hashlib.sha256(content + b"#%d" % seen[content]).digest()
        names.append(np.frombuffer(digest[:8], np.uint32))
        seen[content] += 1
    return np.array(names, np.uint32).reshape(-1, 2)
