"""Questions which of two has more, for pairs within one split whose order is beyond doubt."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from calibjax.sources.worldfacts.choice import pick, shuffled
from calibjax.sources.worldfacts.cities import cities
from calibjax.sources.worldfacts.drafts import Draft
from calibjax.sources.worldfacts.facts import City, Country, Element, countries, elements
from calibjax.sources.worldfacts.singles import is_clear
from calibjax.sources.worldfacts.splits import SPLITS, country_splits, element_splits

T = TypeVar("T")
# Populations are of different years, so the larger must be larger by far.
POPULATION_RATIO = 1.6
CITY_RATIO = 3.0  # besides, the boundaries of cities are drawn differently
AREA_RATIO = 1.3
YEARS_APART = 5


def comparison_drafts() -> Iterator[Draft]:
    """Drafts with the passages of both sides as gold; the answer is a side's name."""
    rows = [*countries().values()]
    with_area = [country for country in rows if country.area]
    large = [city for city in cities() if city.population >= 400_000 and is_clear(city)]
    dated = [element for element in elements() if element.discoverer and element.year]
    by_country, by_element = country_splits(), element_splits()
    for split in SPLITS:
        inside = [country for country in rows if by_country[country.code] == split]
        for a, b in _pairs(inside, "code"):
            yield from _countries("country_population", split, a, b, _population, POPULATION_RATIO)
        for a, b in _pairs([c for c in with_area if by_country[c.code] == split], "code"):
            yield from _countries("country_area", split, a, b, _area, AREA_RATIO)
        for first, second in _pairs([c for c in large if by_country[c.country] == split], "name"):
            yield from _cities(split, first, second)
        for one, two in _pairs([e for e in elements() if by_element[e.number] == split], "number"):
            yield _elements("element_number", split, max(one, two), min(one, two), "element")
        for one, two in _pairs([e for e in dated if by_element[e.number] == split], "number"):
            early, late = sorted((one, two), key=_year)
            if _year(late) - _year(early) >= YEARS_APART:
                yield _elements("element_year", split, early, late, "discovery")


def _pairs(items: Sequence[T], key: str) -> list[tuple[T, T]]:
    """Each item with two others, by hash."""
    named = {str(getattr(item, key)): item for item in items}
    order = [named[name] for name in shuffled(named, "pairs", key)]
    steps = [(i, (i + step) % len(order)) for i in range(len(order)) for step in (1, 2)]
    return [(order[i], order[j]) for i, j in steps if i != j]


def _population(country: Country) -> float:
    return country.population


def _area(country: Country) -> float:
    return country.area or 0


def _year(element: Element) -> int:
    return element.year or 0


def _countries(
    relation: str,
    split: str,
    a: Country,
    b: Country,
    size: Callable[[Country], float],
    ratio: float,
) -> Iterator[Draft]:
    more, less = (a, b) if size(a) >= size(b) else (b, a)
    if size(more) >= ratio * size(less):
        gold = (("overview", more.code), ("overview", less.code))
        subject = f"{more.code}-{less.code}"
        x, y = _sides(more.in_text, less.in_text, subject)
        yield Draft(relation, subject, split, x, y, more.aliases, gold)


def _cities(split: str, a: City, b: City) -> Iterator[Draft]:
    more, less = (a, b) if a.population >= b.population else (b, a)
    if more.population >= CITY_RATIO * less.population:
        gold = (("city", more.geonames_id), ("city", less.geonames_id))
        subject = f"{more.geonames_id}-{less.geonames_id}"
        x, y = _sides(more.name, less.name, subject)
        yield Draft("city_population", subject, split, x, y, (more.name,), gold)


def _elements(relation: str, split: str, right: Element, other: Element, passage: str) -> Draft:
    gold = ((passage, right.number), (passage, other.number))
    subject = f"{right.number}-{other.number}"
    x, y = _sides(right.name.lower(), other.name.lower(), subject)
    return Draft(relation, subject, split, x, y, right.aliases, gold)


def _sides(right: str, other: str, subject: str) -> tuple[Any, Any]:
    """The right answer stands first in half of the questions."""
    return pick(((right, other), (other, right)), "sides", subject)
