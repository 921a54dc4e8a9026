"""The passage collection: which passages there are and under which key each is found."""

from functools import cache

from calibjax.records import Passage, passage_id
from calibjax.sources.worldfacts.choice import pick
from calibjax.sources.worldfacts.cities import cities, nearest
from calibjax.sources.worldfacts.city_passages import city_text
from calibjax.sources.worldfacts.country_passages import geography, money, overview
from calibjax.sources.worldfacts.element_passages import discovery, properties
from calibjax.sources.worldfacts.facts import City, countries, elements, fold

# A passage's key: ("overview", "KE"), ("city", 184707), ("element", 56), ...
Key = tuple[str, str | int]
_FOREIGN_MIN_POPULATION = 300_000


@cache
def passages() -> dict[Key, Passage]:
    """All passages by key: countries, then cities, then elements."""
    found: dict[Key, tuple[str, str]] = {}
    for code, country in countries().items():
        found["overview", code] = overview(country)
        if country.currency:
            found["money", code] = money(country)
        found["geography", code] = geography(country)
    found.update(_cities())
    for element in elements():
        found["element", element.number] = properties(element)
        history = discovery(element)
        if history:
            found["discovery", element.number] = history
    return {key: Passage(passage_id(*written), *written) for key, written in found.items()}


def title_of(city: City) -> str:
    """The name; with the country in brackets where two countries have such a city."""
    if fold(city.name) not in shared_names():
        return city.name
    return f"{city.name} ({countries()[city.country].name})"


@cache
def shared_names() -> frozenset[str]:
    """Folded names that cities of two countries bear."""
    seen: dict[str, str] = {}
    names = [(fold(city.name), city.country) for city in cities()]
    return frozenset(name for name, code in names if seen.setdefault(name, code) != code)


def _cities() -> dict[Key, tuple[str, str]]:
    by_country: dict[str, list[City]] = {code: [] for code in countries()}
    for city in cities():
        by_country[city.country].append(city)
    large = [city for city in cities() if city.population >= _FOREIGN_MIN_POPULATION]
    abroad_of = {code: [c for c in large if c.country != code] for code in by_country}
    found: dict[Key, tuple[str, str]] = {}
    for city in cities():
        # Half of the passages name a city abroad, so that "which country" needs reading.
        foreign = abroad_of[city.country]
        abroad = nearest(city, foreign) if pick((True, False), "abroad", city.geonames_id) else None
        text = city_text(city, by_country[city.country][:12], abroad)
        found["city", city.geonames_id] = (title_of(city), text)
    return found
