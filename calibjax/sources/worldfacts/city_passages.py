"""One passage per city: country, inhabitants, where it lies and what lies near."""

from collections.abc import Sequence

from calibjax.sources.worldfacts.choice import pick
from calibjax.sources.worldfacts.cities import capital_cities, distance_km, nearest, wind
from calibjax.sources.worldfacts.facts import City, countries, fold
from calibjax.sources.worldfacts.numbers import degrees, kilometres, people

# Closer to the capital than this, a direction or a distance says nothing.
FAR_KM = 30.0
_TROPIC = 23.4


def is_capital(city: City) -> bool:
    """Whether this is the capital of its country."""
    names = {fold(name) for name in countries()[city.country].capital_aliases}
    return fold(city.name) in names


def from_capital(city: City) -> tuple[int, str] | None:
    """Kilometres and direction as seen from the capital; None for the capital and its suburbs."""
    capital = capital_cities().get(city.country)
    if capital is None or is_capital(city) or distance_km(capital, city) < FAR_KM:
        return None
    return kilometres(distance_km(capital, city)), wind(capital, city)


def city_text(city: City, same_country: Sequence[City], abroad: City | None) -> str:
    """The passage; `same_country` are the cities it may be compared with."""
    sentences = [_opening(city), *_position(city), *_near(city, same_country)]
    if abroad is not None:
        away = kilometres(distance_km(city, abroad))
        country = countries()[abroad.country].in_text
        sentences.append(
            f"beyond the borders of the country, {abroad.name} in {country} is {away:,} kilometres"
            " away."
        )
    for sentence in (_coordinates(city), _belt(city), _share(city)):
        if sum(len(words.split()) for words in sentences) < 46:
            sentences.append(sentence)
    text = " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
    return text.replace("..", ".")


def _share(city: City) -> str:
    country = countries()[city.country]
    share = 100 * city.population / country.population
    return (
        f"of all the people who live in {country.in_text}, about {max(share, 1):.0f} in a hundred"
        f" live in {city.name}."
    )


def _opening(city: City) -> str:
    country, count = countries()[city.country].in_text, people(city.population)
    kind = "the capital" if is_capital(city) else "a city"
    state = f" in the state of {city.state}" if city.state else ""
    return pick(
        (
            f"{city.name} is {kind} of {country}{_comma(state)} with about {count} inhabitants.",
            f"{city.name}, {kind} of {country}{_comma(state)} has about {count} inhabitants.",
            f"about {count} people live in {city.name}, {kind} of {country}{state}.",
            f"with some {count} inhabitants, {city.name} is {kind} of {country}{state}.",
        )
        if is_capital(city)
        else (
            f"{city.name} is a city{state or ''} in {country} with about {count} inhabitants.",
            f"{city.name}, a city{state or ''} in {country}, has about {count} inhabitants.",
            f"about {count} people live in {city.name}, a city{state or ''} in {country}.",
            f"with some {count} inhabitants, {city.name} is a city{state or ''} in {country}.",
        ),
        "city",
        city.geonames_id,
    )


def _comma(state: str) -> str:
    return f"{state}," if state else ","


def _position(city: City) -> list[str]:
    where = from_capital(city)
    if where is None:
        return []
    capital = countries()[city.country].capital
    return [
        pick(
            (
                f"it lies about {where[0]:,} kilometres {where[1]} of the capital, {capital}.",
                f"from the capital, {capital}, it is about {where[0]:,} kilometres to the"
                f" {where[1]}.",
                f"{capital}, the capital, is about {where[0]:,} kilometres away, and from there"
                f" the city lies to the {where[1]}.",
            ),
            "position",
            city.geonames_id,
        )
    ]


def _coordinates(city: City) -> str:
    place = (
        f"{degrees(city.latitude, 'north', 'south')} and"
        f" {degrees(city.longitude, 'east', 'west')}"
    )
    return f"its coordinates are {place}."


def _near(city: City, same_country: Sequence[City]) -> list[str]:
    other = nearest(city, same_country)
    if other is None:
        return []
    away = kilometres(distance_km(city, other))
    ratio = city.population / other.population
    size = "larger" if ratio > 1.05 else "smaller" if ratio < 0.95 else "of about the same size"
    return [
        f"among the larger cities of the country the nearest is {other.name}, {away:,} kilometres"
        f" to the {wind(city, other)}; by number of inhabitants {city.name} is {size}"
        + (", and the two are often compared." if size.startswith("of") else f" than {other.name}.")
    ]


def _belt(city: City) -> str:
    side = "northern" if city.latitude >= 0 else "southern"
    belt = "inside" if abs(city.latitude) < _TROPIC else "outside"
    return f"this part of the {side} hemisphere lies {belt} the tropics."
