"""Two passages per chemical element: its place in the periodic table, and its discovery."""

from calibjax.sources.worldfacts.choice import pick
from calibjax.sources.worldfacts.facts import Element, elements
from calibjax.sources.worldfacts.numbers import article


def after(element: Element) -> Element | None:
    """The element with the next atomic number."""
    return elements()[element.number] if element.number < len(elements()) else None


def before(element: Element) -> Element | None:
    """The element with the previous atomic number."""
    return elements()[element.number - 2] if element.number > 1 else None


def properties(element: Element) -> tuple[str, str]:
    """Title and text: symbol, number, class, neighbours, weight."""
    name, low = element.name, element.name.lower()
    sentences = [
        pick(
            (
                f"{name} is a chemical element with the symbol {element.symbol} and the atomic"
                f" number {element.number}.",
                f"The chemical element {low} has the symbol {element.symbol} and the atomic number"
                f" {element.number}.",
                f"{name}, written {element.symbol} in formulas, is the chemical element with"
                f" {element.number} protons in its nucleus, its atomic number.",
                f"With {element.number} as its atomic number and {element.symbol} as its symbol,"
                f" {low} is one of the chemical elements.",
            ),
            "element",
            element.number,
        ),
        _class(element),
        _neighbours(element),
        f"Its atomic weight is about {element.weight:.5g}.",
    ]
    if element.density:
        sentences.append(f"One cubic centimetre of it has a mass of {element.density:.3g} grams.")
    if len(element.aliases) > 1:
        sentences.append(f"Its name is also spelled {element.aliases[1].lower()}.")
    sentences = [sentence for sentence in sentences if sentence]
    if sum(len(sentence.split()) for sentence in sentences) < 46:
        sentences.append(
            "In a neutral atom the number of electrons around the nucleus is the same as that of"
            " the protons in it."
        )
    return name, " ".join(sentences)


def _class(element: Element) -> str:
    place = f"period {element.period}" + (f" and group {element.group}" if element.group else "")
    if not element.series:
        return f"It stands in {place} of the periodic table."
    kind = element.series[0]
    return f"It is {article(kind)} {kind} and stands in {place} of the periodic table."


def _neighbours(element: Element) -> str:
    earlier, later = before(element), after(element)
    if earlier is None or later is None:
        other = later or earlier
        word = "followed" if later else "preceded"
        return f"By atomic number it is directly {word} by {other.name.lower()}." if other else ""
    return (
        f"By atomic number it comes directly after {earlier.name.lower()} and is followed by"
        f" {later.name.lower()}."
    )


def discovery(element: Element) -> tuple[str, str] | None:
    """Title and text: who found it and when; None where that is in doubt."""
    low = element.name.lower()
    if element.discoverer is None or element.year is None:
        return None
    sentences = [
        pick(
            (
                f"The element {low} was discovered in {element.year} by {element.discoverer}.",
                f"{element.discoverer} discovered the element {low} in {element.year}.",
                f"It was {element.discoverer} who discovered the element {low}, in {element.year}.",
                f"In {element.year} the element {low} was discovered by {element.discoverer}.",
            ),
            "discovery",
            element.number,
        ),
        *_contemporaries(element),
        f"Chemists write the element as {element.symbol}; its atomic number is {element.number} and"
        f" it stands in period {element.period} of the periodic table.",
    ]
    return f"Discovery of {low}", " ".join(sentences)


def _contemporaries(element: Element) -> list[str]:
    dated = [other for other in elements() if other.year and other.discoverer]
    earlier = [other for other in dated if other.year < element.year]  # type: ignore[operator]
    later = [other for other in dated if other.year > element.year]  # type: ignore[operator]
    sentences = []
    if earlier:
        other = max(earlier, key=lambda e: (e.year, e.number))
        start = "Some years before, in" if (element.year or 0) - (other.year or 0) > 1 else "In"
        found = f"{other.discoverer} had found {other.name.lower()}"
        sentences.append(f"{start} {other.year}, {found}.")
    if later:
        other = min(later, key=lambda e: (e.year, e.number))
        sentences.append(
            f"The discovery of {other.name.lower()} by {other.discoverer} followed in"
            f" {other.year}."
        )
    return sentences
