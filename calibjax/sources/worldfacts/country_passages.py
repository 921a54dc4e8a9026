"""Three passages per country: overview, money and numbers, geography."""

from functools import cache

from calibjax.sources.worldfacts.choice import pick, shuffled
from calibjax.sources.worldfacts.cities import cities, distance_km
from calibjax.sources.worldfacts.facts import City, Country, countries
from calibjax.sources.worldfacts.numbers import (
    degrees,
    kilometres,
    listed,
    people,
    spelled,
)

MIN_WORDS = 46


def overview(country: Country) -> tuple[str, str]:
    """Title and text: region, capital, people, language, demonym."""
    return country.name, _fill(_overview_core(country), _overview_more(country))


def money(country: Country) -> tuple[str, str]:
    """Title and text: currency, dialling code, internet domain."""
    return f"Currency of {country.in_text}", _fill(_money_core(country), _money_more(country))


def geography(country: Country) -> tuple[str, str]:
    """Title and text: continent, neighbours, area, larger cities."""
    return (
        f"Geography of {country.in_text}",
        _fill(_geography_core(country), _geography_more(country)),
    )


def _fill(core: list[str], more: list[str]) -> str:
    """The core sentences, then others until the passage is long enough."""
    sentences = list(core)
    for sentence in more:
        if sum(len(s.split()) for s in sentences) >= MIN_WORDS:
            break
        sentences.append(sentence)
    text = " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
    return text.replace("..", ".")


def _region(country: Country) -> str:
    plain = country.region in ("Caribbean",)
    return f"the {country.region}" if plain else country.region


def _overview_core(country: Country) -> list[str]:
    name, capital, region = country.in_text, country.capital, _region(country)
    core = [
        pick(
            (
                f"{name} is a country in {region}, and its capital is {capital}.",
                f"{name}, whose capital is {capital}, is a country in {region}.",
                f"{name} lies in {region}, as the United Nations divide the world into regions, and"
                f" has {capital} as its capital.",
                f"the capital of {name}, a country in {region}, is {capital}.",
            ),
            "overview",
            country.code,
        ),
        f"the country is home to about {people(country.population)} people"
        + (f" on an area of {country.area:,} square kilometres." if country.area else "."),
    ]
    if country.languages:
        many = len(country.languages) > 1
        status = "are official languages" if many else "is an official language"
        core.append(f"{listed(list(country.languages))} {status} there.")
    if country.demonym_is_sure:
        core.append(f"the word for people and things from {name} is {country.adjective}.")
    return core


def _overview_more(country: Country) -> list[str]:
    largest = _cities_of(country)
    more = []
    others = [city.name for city in largest if city.name != country.capital][:3]
    if len(others) > 1:
        more.append(f"besides {country.capital}, its larger places include {listed(others)}.")
    if country.area:
        density = country.population / country.area
        shown = f"{density:.0f}" if density >= 1 else f"{density:.1f}"
        more.append(f"that makes {shown} inhabitants per square kilometre on average.")
    if len(country.aliases) > 1 and country.aliases[1].lower() != country.in_text.lower():
        more.append(f"another name under which the country is known is {country.aliases[1]}.")
    near = _peers(country)
    if near:
        verb = "countries that the United Nations count to" if len(near) > 1 else "country of"
        more.append(
            f"the other {verb} {_region(country)} {'include' if len(near) > 1 else 'is'}"
            f" {listed([peer.in_text for peer in near])}."
        )
    more.append(f"the government of {country.in_text} has its seat in {country.capital}.")
    return more


def _money_core(country: Country) -> list[str]:
    name = country.in_text
    core = []
    if country.currency:
        core.append(
            pick(
                (
                    f"the currency of {name} is the {country.currency}, which banks abbreviate as"
                    f" {country.currency_code}.",
                    f"people in {name} pay with the {country.currency}, written"
                    f" {country.currency_code} in international banking.",
                    f"in {name} prices are given in the {country.currency}, whose international"
                    f" code is {country.currency_code}.",
                    f"the {country.currency}, with the code {country.currency_code}, is the legal"
                    f" tender of {name}.",
                ),
                "money",
                country.code,
            )
        )
    if country.calling_code:
        core.append(
            f"telephone calls from abroad reach the country with the dialling code"
            f" +{country.calling_code}."
        )
    if country.domain:
        core.append(f"internet addresses that belong to {name} end in {country.domain}.")
    return core


def _money_more(country: Country) -> list[str]:
    known = [peer for peer in _peers(country) if peer.currency]
    other = [peer for peer in known if peer.currency != country.currency]
    same = [peer for peer in known if peer.currency == country.currency and country.currency]
    more = []
    if other:
        first = other[0]
        more.append(
            f"money is different in {first.in_text}, another country of {_region(country)}, where"
            f" one pays with the {first.currency}."
        )
    if same:
        more.append(f"the same money circulates in {listed([peer.in_text for peer in same[:3]])}.")
    dialled = [peer for peer in _peers(country) if peer.calling_code and peer.domain]
    for peer in dialled[:2]:
        more.append(
            f"the code of {peer.in_text} is +{peer.calling_code}, and its addresses end in"
            f" {peer.domain}."
        )
    more.append(
        f"about {people(country.population)} people live in {country.in_text}, whose capital is"
        f" {country.capital}."
    )
    more.append(f"the country belongs to the region that is known as {_region(country)}.")
    return more


def _geography_core(country: Country) -> list[str]:
    name = country.in_text
    place = f" on the continent of {country.continent}" if country.continent else ""
    core = [
        pick(
            (
                f"{name} is situated{place} and belongs to the region of {_region(country)}.",
                f"on the map {name} is found{place}, in the region called {_region(country)}.",
                f"geographers place {name}{place}; the region is {_region(country)}.",
                f"{name} lies{place}, more exactly in {_region(country)}.",
            ),
            "geography",
            country.code,
        )
    ]
    names = [countries()[c].in_text for c in country.neighbours or () if c in countries()]
    if country.neighbours == ():
        core.append("it has no land border with any other country.")
    elif country.neighbours and len(names) == len(country.neighbours):
        noun = "one neighbour" if len(names) == 1 else f"{spelled(len(names))} neighbours"
        core.append(f"it shares land borders with {noun}: {listed(names)}.")
    if country.area:
        core.append(f"its surface measures {country.area:,} square kilometres.")
    return core


def _geography_more(country: Country) -> list[str]:
    rows = _cities_of(country)
    more = []
    if len(rows) > 3:
        north = max(rows, key=lambda city: city.latitude)
        south = min(rows, key=lambda city: city.latitude)
        more.append(
            f"of the larger cities, {north.name} lies farthest north, at"
            f" {degrees(north.latitude, 'north', 'south')}, and {south.name} farthest south, at"
            f" {degrees(south.latitude, 'north', 'south')}."
        )
        more.append(
            f"{kilometres(distance_km(north, south)):,} kilometres separate the two as the crow"
            " flies."
        )
    peers = [peer for peer in _peers(country) if peer.area and country.area]
    for peer in peers[:3]:
        word = "larger" if peer.area > country.area else "smaller"  # type: ignore[operator]
        more.append(
            f"{peer.in_text}, a country of the same region, is {word}, with {peer.area:,} square"
            " kilometres."
        )
    more.append(
        f"about {people(country.population)} people live in the country, whose capital is"
        f" {country.capital}."
    )
    near = [peer.in_text for peer in _peers(country)]
    if near:
        more.append(f"the same region holds {listed(near)}.")
    more.append(f"as a whole the country is called {country.in_text} in English.")
    return more


def _cities_of(country: Country) -> list[City]:
    return _by_country()[country.code]


@cache
def _by_country() -> dict[str, list[City]]:
    found: dict[str, list[City]] = {code: [] for code in countries()}
    for city in cities():
        found[city.country].append(city)
    return found


def _peers(country: Country) -> list[Country]:
    """Four other countries of the region."""
    peers = [c.code for c in countries().values() if c.region == country.region]
    order = shuffled([code for code in peers if code != country.code], "peers", country.code)
    return [countries()[code] for code in order[:4]]
