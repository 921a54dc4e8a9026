"""No file is opened in a way that may run code or corrupt memory (pickles, foreign indexes)."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Calls and imports; `allow_pickle=False` and messages that speak of pickles are what we want.
FORBIDDEN = re.compile(
    r"import (cloud)?pickle|from (cloud)?pickle|pickle\.(load|dump)|allow_pickle=True|torch\.load"
    r"|joblib|(?<![\w.])eval\(|\bread_index\("
)


def test_the_pattern_finds_what_it_is_for():
    for line in ("import pickle", "x = torch.load(p)", "eval(text)", "faiss.read_index(p)"):
        assert FORBIDDEN.search(line)
    assert not FORBIDDEN.search("np.load(path, allow_pickle=False); model.eval()")


def test_no_source_file_opens_pickles_or_foreign_indexes():
    paths = [p for room in ("calibjax", "launch") for p in (ROOT / room).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if FORBIDDEN.search(line)
    ]
    assert len(paths) > 100 and not found
