"""How numbers are written in the passages."""

WORDS = (
    "no one two three four five six seven eight nine ten eleven twelve thirteen fourteen".split()
)


def people(count: int) -> str:
    """Rounded, as prose has it: 51 million, 4.7 million, 570,000."""
    if count >= 10_000_000:
        return f"{count / 1e6:.0f} million"
    if count >= 1_000_000:
        return f"{count / 1e6:.1f} million"
    digits = max(len(str(count)) - 2, 0)
    return f"{round(count, -digits):,}"


def kilometres(distance: float) -> int:
    """Rounded to 10 km; to 1 km below 20."""
    return round(distance) if distance < 20 else 10 * round(distance / 10)


def spelled(count: int) -> str:
    """A small number in words."""
    return WORDS[count] if count < len(WORDS) else str(count)


def degrees(value: float, positive: str, negative: str) -> str:
    """Latitude or longitude: 1.3 degrees south."""
    return f"{abs(value):.1f} degrees {positive if value >= 0 else negative}"


def listed(names: list[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def article(word: str) -> str:
    """a or an, by the first letter."""
    return "an" if word[:1].lower() in "aeiou" else "a"
