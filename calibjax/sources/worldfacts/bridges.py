"""Questions that need two passages: from a city to its country, from an element to the next."""

from collections.abc import Iterator

from calibjax.sources.worldfacts.cities import cities
from calibjax.sources.worldfacts.city_passages import is_capital
from calibjax.sources.worldfacts.drafts import Draft
from calibjax.sources.worldfacts.element_passages import after
from calibjax.sources.worldfacts.facts import City, countries, elements, fold
from calibjax.sources.worldfacts.passages import Key
from calibjax.sources.worldfacts.singles import (
    border_answers,
    code_answers,
    domain_answers,
    is_clear,
    symbol_answers,
)
from calibjax.sources.worldfacts.splits import country_splits, element_splits


def bridge_drafts() -> Iterator[Draft]:
    """Drafts whose first gold passage names the bridge and whose second holds the answer."""
    for city in cities():
        if is_clear(city):
            yield from _city_drafts(city)
    for element in elements():
        other, split = after(element), element_splits()[element.number]
        if other is not None and split == element_splits()[other.number] and symbol_answers(other):
            gold = (("element", element.number), ("element", other.number))
            subject, name = str(element.number), element.name.lower()
            yield Draft("next_symbol", subject, split, name, "", symbol_answers(other), gold)


def _city_drafts(city: City) -> Iterator[Draft]:
    country = countries()[city.country]
    money, overview, geography = ("money", "overview", "geography")
    if is_capital(city):
        if fold(city.name) != fold(country.name):
            yield from _over("capital_currency", city, country.currency_aliases, money)
        return
    yield from _over("city_currency", city, country.currency_aliases, money)
    if country.continent:
        yield from _over("city_continent", city, (country.continent,), geography)
    yield from _over("city_language", city, country.languages, overview)
    if country.currency:  # else there is no passage about money
        yield from _over("city_domain", city, domain_answers(country), money)
        yield from _over("city_calling_code", city, code_answers(country), money)
    yield from _over("city_borders", city, border_answers(country), geography)


def _over(relation: str, city: City, answers: tuple[str, ...], passage: str) -> Iterator[Draft]:
    """The draft that goes from the city over its country to a passage about that."""
    if answers:
        gold: tuple[Key, Key] = (("city", city.geonames_id), (passage, city.country))
        split = country_splits()[city.country]
        yield Draft(relation, str(city.geonames_id), split, city.name, "", answers, gold)
