"""Questions that one passage answers."""

from collections.abc import Iterator
from functools import cache

from calibjax.sources.worldfacts import corrections as fix
from calibjax.sources.worldfacts.cities import bearers, cities
from calibjax.sources.worldfacts.city_passages import from_capital, is_capital
from calibjax.sources.worldfacts.drafts import Draft
from calibjax.sources.worldfacts.facts import (
    City,
    Country,
    Element,
    countries,
    elements,
    fold,
)
from calibjax.sources.worldfacts.numbers import spelled
from calibjax.sources.worldfacts.passages import shared_names, title_of
from calibjax.sources.worldfacts.splits import country_splits, element_splits

# A name is clear when no other country has such a city of a tenth of its size.
_RIVAL_SHARE = 0.1


def single_drafts() -> Iterator[Draft]:
    """One draft per subject and relation."""
    for country in countries().values():
        yield from _country_drafts(country)
    for city in cities():
        yield from _city_drafts(city)
    for element in elements():
        yield from _element_drafts(element)


def region_answers(country: Country) -> tuple[str, ...]:
    """Names of the country's region."""
    return (country.region, *fix.REGION_ALIASES.get(country.region, ()))


def code_answers(country: Country) -> tuple[str, ...]:
    """The dialling code with and without its plus sign; () where it is not known."""
    return (f"+{country.calling_code}", country.calling_code) if country.calling_code else ()


def domain_answers(country: Country) -> tuple[str, ...]:
    """The internet domain; () where it is not known or reads like a word (.in, .is)."""
    known = country.domain and country.domain not in fix.DOMAINS_LIKE_WORDS
    return (country.domain,) if known and country.domain else ()


def symbol_answers(element: Element) -> tuple[str, ...]:
    """The symbol; () where it reads like a word (I, In, As)."""
    return () if element.symbol in fix.SYMBOLS_LIKE_WORDS else (element.symbol,)


def border_answers(country: Country) -> tuple[str, ...]:
    """The number of neighbours in words and in digits; () where unknown or none."""
    if not country.neighbours or not all(c in countries() for c in country.neighbours):
        return ()
    count = len(country.neighbours)
    return tuple(dict.fromkeys((spelled(count), str(count))))


def is_clear(city: City) -> bool:
    """Whether the bare name means this city to everybody."""
    key = fold(city.name)
    if key in shared_names() or key in _country_names():
        return False
    limit = _RIVAL_SHARE * city.population
    namesakes = bearers().get(key, {})
    return all(n <= limit for code, n in namesakes.items() if code != city.country)


@cache
def _country_names() -> set[str]:
    return {fold(name) for country in countries().values() for name in country.aliases}


def _country_drafts(country: Country) -> Iterator[Draft]:
    split, code, name = country_splits()[country.code], country.code, country.in_text
    overview, money, geography = ("overview", code), ("money", code), ("geography", code)
    facts: list[tuple[str, tuple[str, ...], tuple[str, str]]] = [
        ("region", region_answers(country), overview),
        ("language", country.languages, overview),
    ]
    if fold(country.capital) != fold(country.name):
        facts.append(("capital", country.capital_aliases, overview))
        yield Draft("capital_of", code, split, country.capital, "", country.aliases, (overview,))
    if country.demonym_is_sure:
        facts.append(("demonym", _demonyms(country.adjective), overview))
    if country.currency:
        facts.append(("currency", country.currency_aliases, money))
        facts.append(("calling_code", code_answers(country), money))
        facts.append(("domain", domain_answers(country), money))
    if country.continent:
        facts.append(("continent", (country.continent,), geography))
    facts.append(("borders", border_answers(country), geography))
    for relation, answers, gold in facts:
        if answers:
            yield Draft(relation, code, split, name, "", answers, (gold,))


def _demonyms(adjective: str) -> tuple[str, ...]:
    return (adjective,) if adjective.endswith("ese") else (adjective, f"{adjective}s")


def _city_drafts(city: City) -> Iterator[Draft]:
    country = countries()[city.country]
    split, subject = country_splits()[city.country], str(city.geonames_id)
    gold = (("city", city.geonames_id),)
    if is_clear(city) and not is_capital(city):
        yield Draft("city_country", subject, split, city.name, "", country.aliases, gold)
        if city.state:
            yield Draft("city_state", subject, split, city.name, "", (city.state,), gold)
    where = from_capital(city)
    if where is not None:
        # Where the name is not clear the title says which city is meant.
        name, start = title_of(city), country.capital
        answers = (where[1], f"{where[1][:5]}-{where[1][5:]}") if len(where[1]) > 5 else (where[1],)
        yield Draft("direction", subject, split, name, start, answers, gold)
        yield Draft("distance", subject, split, name, start, _kilometre_answers(where[0]), gold)


def _kilometre_answers(distance: int) -> tuple[str, ...]:
    forms = (f"{distance:,} kilometres", f"{distance:,} kilometers", f"{distance:,} km")
    return tuple(dict.fromkeys((*forms, f"{distance:,}", f"{distance}")))


def _element_drafts(element: Element) -> Iterator[Draft]:
    split, low = element_splits()[element.number], element.name.lower()
    main, history = (("element", element.number),), (("discovery", element.number),)
    subject = number = str(element.number)
    if symbol_answers(element):
        yield Draft("symbol", subject, split, low, "", symbol_answers(element), main)
    yield Draft("symbol_of", subject, split, element.symbol, "", element.aliases, main)
    yield Draft("number", subject, split, low, "", (number,), main)
    yield Draft("number_of", subject, split, number, "", element.aliases, main)
    if element.series:
        yield Draft("class", subject, split, low, "", element.series, main)
    if element.discoverer and element.year:
        surname = element.discoverer.split()[-1]
        names = (element.discoverer, surname)
        yield Draft("discoverer", subject, split, low, "", names, history)
        yield Draft("discovery_year", subject, split, low, "", (str(element.year),), history)
