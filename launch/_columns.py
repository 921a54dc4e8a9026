"""--rename: what the columns of a file are called there."""

from absl import flags

from calibjax.errors import input_error

RENAME = flags.DEFINE_list(
    "rename", [], "columns to rename, FILE_NAME:OUR_NAME, such as prob:confidence"
)


def renames() -> dict[str, str]:
    """--rename=prob:confidence,label:correct as a mapping."""
    pairs = {}
    for entry in RENAME.value:
        old, _, new = entry.rpartition(":")
        if not old or not new:
            raise input_error("rename", entry, "FILE_NAME:OUR_NAME", "--rename=prob:confidence")
        pairs[old] = new
    return pairs
