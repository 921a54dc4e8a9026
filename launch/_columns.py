"""--rename: what the columns of a file are called there."""

from collections.abc import Mapping, Sequence

from absl import flags

from calibjax.errors import closest, input_error
from calibjax.reading import textfiles

RENAME = flags.DEFINE_list(
    "rename", [], "columns to rename, FILE_NAME:OUR_NAME, such as prob:confidence"
)


def renames(*files: tuple[str, str]) -> dict[str, str]:
    """--rename=prob:confidence,label:correct as a mapping.

    files: (flag, path) of the files that it is for. Raises InputError for a column that none of
    them has, and for two columns that would get one name.
    """
    pairs: dict[str, str] = {}
    for entry in RENAME.value:
        old, _, new = entry.rpartition(":")
        if not old or not new:
            raise input_error("rename", entry, "FILE_NAME:OUR_NAME", "--rename=prob:confidence")
        if pairs.setdefault(old, new) != new:
            fix = "drop one of them"
            raise input_error("rename", entry, f"one name for {old}, found {pairs[old]} too", fix)
    if pairs:
        _check(pairs, files)
    return pairs


def _check(pairs: Mapping[str, str], files: Sequence[tuple[str, str]]) -> None:
    missing = set(pairs)
    seen: dict[str, Mapping[str, None]] = {}
    for flag, path in files:
        found = textfiles.find_columns(path, pairs, name=flag)
        _check_targets(pairs, found, path)
        missing -= found.keys()
        seen |= {path: found}
    for old in pairs:
        if old in missing:
            places = "; ".join(f"{path}: {', '.join(found)}" for path, found in seen.items())
            near = closest(old, [column for found in seen.values() for column in found])
            fix = f"--rename={near}:{pairs[old]}" if near else "name a column of the file"
            expected = f"a column that is there ({places})"
            raise input_error("rename", f"{old}:{pairs[old]}", expected, fix)


def _check_targets(pairs: Mapping[str, str], found: Mapping[str, None], path: str) -> None:
    names = [pairs.get(column, column) for column in found]
    for old, new in pairs.items():
        if old in found and names.count(new) > 1:
            expected = f"one column {new} in {path}, found {', '.join(found)}"
            rest = f"{new}:{new}_before" if new in found and new not in pairs else None
            fix = f"--rename={old}:{new},{rest}" if rest else "drop one of the two"
            raise input_error("rename", f"{old}:{new}", expected, fix)
