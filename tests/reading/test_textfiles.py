"""Damaged files: what is whole is kept, what is not is set aside with file, line and reason."""

import gzip
import io
import json
import random
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from calibjax.errors import InputError
from calibjax.reading import fields, textfiles
from calibjax.reading.textfiles import Row, RowFault

N = 1000


class Damaged(NamedTuple):
    """A file's bytes, its suffix, and the numbers (from 0) of the rows that must be set aside."""

    data: bytes
    suffix: str
    lost: set[int]
    truncated: bool = False


def row(number: int) -> dict[str, Any]:
    return {"id": f"q{number}", "confidence": number / N, "text": f"Zürich — row {number}, «x»"}


def json_rows() -> list[bytes]:
    return [json.dumps(row(number), ensure_ascii=False).encode() for number in range(N)]


def csv_rows() -> list[bytes]:
    return [b"id,confidence,text"] + [
        f'q{number},{number / N},"Zürich, row {number}"'.encode() for number in range(N)
    ]


def lines(rows: list[bytes], end: bytes = b"\n") -> bytes:
    return b"".join(each + end for each in rows)


def replaced(rng: random.Random, make: Any) -> Damaged:
    """Three rows replaced by `make(row's JSON)`."""
    rows, lost = json_rows(), set(rng.sample(range(N), 3))
    for number in lost:
        rows[number] = make(rows[number])
    return Damaged(lines(rows), ".jsonl", lost)


def torn_end(rng: random.Random) -> Damaged:
    rows = json_rows()
    cut = rng.randrange(1, len(rows[-1]))
    return Damaged(lines(rows[:-1]) + rows[-1][:cut], ".jsonl", {N - 1})


def nul_block(rng: random.Random) -> Damaged:
    rows = json_rows()
    data = bytearray(lines(rows))
    start = rng.randrange(len(data) - 4096)
    first = data[:start].count(b"\n")
    # A block of a lost disk page runs over line ends: the rows in it become one line.
    swallowed = data[start : start + 4096].count(b"\n")
    data[start : start + 4096] = bytes(4096)
    return Damaged(bytes(data), ".jsonl", set(range(first, first + swallowed + 1)))


def byte_order_mark_and_crlf(rng: random.Random) -> Damaged:
    return Damaged(b"\xef\xbb\xbf" + lines(json_rows(), b"\r\n"), ".jsonl", set())


def latin1_byte(rng: random.Random) -> Damaged:
    return replaced(rng, lambda raw: raw.replace("ü".encode(), b"\xfc"))


def repeated_key(rng: random.Random) -> Damaged:
    return replaced(rng, lambda raw: raw.replace(b'{"id"', b'{"id": "other", "id"'))


def not_a_number(rng: random.Random) -> Damaged:
    bad = rng.choice([b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000, b"[1, [-1e400]]"])
    return replaced(rng, lambda raw: raw.replace(b'"text"', b'"x": ' + bad + b', "text"'))


def depth_bomb(rng: random.Random) -> Damaged:
    depth = rng.choice([65, 1000, 100_000])
    return replaced(rng, lambda raw: b'{"id": ' + b"[" * depth + b"]" * depth + b"}")


def lone_surrogate(rng: random.Random) -> Damaged:
    return replaced(rng, lambda raw: raw.replace(b"row", rng.choice([b"\\ud800", b"\\uDFFF"])))


def other_line_ends_in_text(rng: random.Random) -> Damaged:
    rows = json_rows()
    for number in rng.sample(range(N), 50):
        rows[number] = rows[number].replace(b"row", "a\u2028b\u2029c\u0085d".encode())
    return Damaged(lines(rows), ".jsonl", set())


def no_object(rng: random.Random) -> Damaged:
    return replaced(rng, lambda raw: rng.choice([b"null", b'"text"', b"[1]", b"3", b"{} {}"]))


def cut_gzip(rng: random.Random) -> Damaged:
    rows = json_rows()
    packed = gzip.compress(lines(rows), mtime=0)
    data = packed[: rng.randrange(200, len(packed) - 20)]
    whole = unpack_what_is_there(data).count(b"\n")
    torn = 0 if unpack_what_is_there(data).endswith(b"\n") else 1
    return Damaged(data, ".jsonl.gz", set(range(whole, whole + torn)), truncated=True)


def unpack_what_is_there(data: bytes) -> bytes:
    import zlib

    return zlib.decompressobj(wbits=31).decompress(data)


def column_too_many(rng: random.Random) -> Damaged:
    rows, lost = csv_rows(), set(rng.sample(range(N), 3))
    for number in lost:
        rows[number + 1] += b",surplus"
    return Damaged(lines(rows), ".csv", lost)


def stray_quote(rng: random.Random) -> Damaged:
    rows, lost = csv_rows(), {rng.randrange(N)}
    for number in lost:
        rows[number + 1] = rows[number + 1].replace(b'"Z', b'""Z')
    return Damaged(lines(rows), ".csv", lost)


def unclosed_quote(rng: random.Random) -> Damaged:
    rows, lost = csv_rows(), {rng.randrange(N)}
    for number in lost:
        rows[number + 1] = rows[number + 1][:-1]
    return Damaged(lines(rows), ".csv", lost)


def words_that_mean_missing_elsewhere(rng: random.Random) -> Damaged:
    rows = csv_rows()
    for word in ("None", "NA", "null", "nan", "N/A", ""):
        number = rng.randrange(N)
        rows[number + 1] = f"q{number},{number / N},{word}".encode()
    return Damaged(lines(rows, b"\r\n"), ".csv", set())


GENERATORS = (
    torn_end,
    nul_block,
    byte_order_mark_and_crlf,
    latin1_byte,
    repeated_key,
    not_a_number,
    depth_bomb,
    lone_surrogate,
    other_line_ends_in_text,
    no_object,
    cut_gzip,
    column_too_many,
    stray_quote,
    unclosed_quote,
    words_that_mean_missing_elsewhere,
)


def write(directory: Path, damaged: Damaged) -> Path:
    path = directory / f"rows{damaged.suffix}"
    path.write_bytes(damaged.data)
    return path


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("generate", GENERATORS, ids=lambda function: function.__name__)
def test_exactly_the_damaged_rows_are_set_aside(generate, seed, tmp_path):
    damaged = generate(random.Random(f"{generate.__name__} {seed}"))
    path = write(tmp_path, damaged)
    records = textfiles.read_records(path, required=("id",))
    end = max(damaged.lost, default=0) + 1 if damaged.truncated else N
    expected = [f"q{number}" for number in range(end) if number not in damaged.lost]
    assert [each.data["id"] for each in records.rows] == expected
    assert records.truncated == damaged.truncated
    # Every line of the file is accounted for; a NUL block joins the lines that it covers.
    joined = len(damaged.lost) - 1 if generate is nul_block else 0
    assert len(records.rejected) == len(damaged.lost) - joined
    for rejected in records.rejected:
        header = damaged.suffix == ".csv"
        assert rejected.line - 1 - header in damaged.lost
        assert rejected.file == str(path) and rejected.reason and "\n" not in rejected.reason


@pytest.mark.parametrize("word", ["None", "NA", "null", "nan", "N/A", ""])
def test_csv_cells_stay_the_text_they_are(word, tmp_path):
    (tmp_path / "a.csv").write_text(f"id,answer\n1,{word}\n")
    assert textfiles.read_records(tmp_path / "a.csv").rows[0].data == {"id": "1", "answer": word}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".json"])
def test_another_encoding_is_named_with_the_command_that_mends_it(encoding, suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    path.write_bytes('{"id": "q1", "text": "plain words"}\n'.encode(encoding))
    name = "UTF-32" if encoding == "utf-32" else "UTF-16"
    with pytest.raises(InputError, match=f"found {name}.*iconv -f {name}.* -t UTF-8 "):
        textfiles.read_records(path)


def test_a_cut_parquet_file_is_a_file_fault_and_a_bad_row_is_not(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"id": ["a", "b", "c"], "confidence": [0.5, float("nan"), 1.0]})
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path)
    records = textfiles.read_records(path)
    # pandas writes NaN for what is missing.
    assert [each.data["confidence"] for each in records.rows] == [0.5, None, 1.0]
    parsed = textfiles.parse_rows(records, lambda each: fields.number(each, "confidence"))
    assert [(each.line, each.reason) for each in parsed.rejected] == [
        (2, "confidence=null: expected a number")
    ]
    data = path.read_bytes()
    for size in (0, 3, 10, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(InputError, match="whole Parquet file"):
            textfiles.read_records(path)


def test_parquet_types_of_other_tools_are_read_as_what_they_mean(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    columns = {
        "id": pa.array(["a", "b"]).dictionary_encode(),
        "text": pa.array(["x", "y"], pa.large_string()),
        "small": pa.array([1, 0], pa.int8()),
        "half": pa.array([0.5, float("nan")], pa.float16()),
        "decimal": pa.array([Decimal("0.250"), None], pa.decimal128(4, 3)),
        "whole": pa.array([Decimal(7), Decimal(8)], pa.decimal128(4, 0)),
        "nested": pa.array([{"a": [1.0, float("nan")]}, None]),
        "nothing": pa.nulls(2),
        "huge": pa.array([2**63, 2**64 - 1], pa.uint64()),
    }
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path)
    records = textfiles.read_records(path)
    first, second = (each.data for each in records.rows)
    assert first == {
        **{"id": "a", "text": "x", "small": 1, "half": 0.5, "decimal": 0.25, "whole": 7},
        **{"nested": {"a": [1.0, None]}, "nothing": None, "huge": 2**63},
    }
    assert second["half"] is None and second["decimal"] is None and second["huge"] == 2**64 - 1
    twice = pa.table([columns["id"], columns["id"]], names=["id", "id"])
    pyarrow.parquet.write_table(twice, path)
    with pytest.raises(InputError, match="each column once, found 'id' twice"):
        textfiles.read_records(path)


def test_a_line_of_100_mb_is_set_aside_in_bounded_memory(tmp_path):
    path = tmp_path / "a.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"id": "first"}\n{"id": "')
        for _ in range(100):
            file.write(b"x" * 2**20)
        file.write(b'"}\n{"id": "last"}\n')
    script = (
        "import sys; from calibjax.reading import textfiles\n"
        "records = textfiles.read_records(sys.argv[1])\n"
        "assert [row.data['id'] for row in records.rows] == ['first', 'last']\n"
        "assert [row.line for row in records.rejected] == [2], records.rejected\n"
        # Not ru_maxrss: a child starts with its parent's.
        "[peak] = [x for x in open('/proc/self/status') if x.startswith('VmHWM')]\n"
        "print(peak.split()[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 300 * 1024  # KiB on Linux


def test_mutated_bytes_raise_nothing_but_input_errors(tmp_path):
    import pyarrow
    import pyarrow.parquet

    small = json_rows()[:12]
    table = pyarrow.Table.from_pylist([row(number) for number in range(12)])
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="none")
    originals = {
        ".jsonl": lines(small),
        ".json": b"[" + b",".join(small) + b"]",
        ".csv": lines(csv_rows()[:12]),
        ".tsv": lines(csv_rows()[:12]).replace(b",", b"\t"),
        ".jsonl.gz": gzip.compress(lines(small), mtime=0),
        ".parquet": buffer.getvalue(),
    }
    rng = random.Random(17)
    struck = 0
    for number in range(2000):
        suffix = list(originals)[number % len(originals)]
        data = bytearray(originals[suffix])
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(data))
            action = rng.randrange(3)
            if action == 0:
                data[place] ^= 1 << rng.randrange(8)
            elif action == 1:
                del data[place : place + rng.randrange(1, 9)]
            else:
                data[place:place] = rng.randbytes(rng.randrange(1, 5))
        path = tmp_path / f"a{suffix}"
        path.write_bytes(bytes(data))
        struck += bytes(data) != originals[suffix]
        try:
            records = textfiles.read_records(path, required=("id",))
            assert all(isinstance(each.data, dict) for each in records.rows)
            assert all(each.line >= 1 and each.reason for each in records.rejected)
            textfiles.check_kept(records, path)
        except InputError as error:
            assert str(path) in str(error)
    assert struck > 1990


def test_a_missing_file_is_met_with_the_closest_name(tmp_path):
    (tmp_path / "preds.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="predictions=.*no such file; fix: did you mean .*preds"):
        textfiles.read_records(tmp_path / "pred.jsonl", name="predictions")


def test_a_missing_column_lists_what_there_is_and_how_to_rename(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,prob,label\n1,0.5,1\n")
    with pytest.raises(InputError, match="found id, prob, label; fix: --rename=prob:confidence or"):
        textfiles.read_records(path, required=("id", "confidence"), rename={})
    # A command without that flag does not name it.
    with pytest.raises(InputError, match=r"fix: rename in the file \(prob:confidence\)"):
        textfiles.read_records(path, required=("id", "confidence"))
    with pytest.raises(InputError, match="no columns confidence, colour: .*; add colour$"):
        textfiles.read_records(path, required=("id", "confidence", "colour"))
    records = textfiles.read_records(
        path, required=("id", "confidence"), rename={"prob": "confidence"}
    )
    assert records.rows[0].data["confidence"] == "0.5"


@pytest.mark.parametrize(
    "name, head, found, fix",
    [
        ("a.csv", "id;confidence", "separated by semicolons", "numbers: id,confidence$"),
        ("a.csv", "id\tconfidence", "separated by tabs", "mv .*/a.csv .*/a.tsv$"),
        ("a.csv", "id|confidence", "separated by bars", "numbers: id,confidence$"),
        ("a.tsv", "id,confidence", "separated by commas", "mv .*/a.tsv .*/a.csv$"),
        ("a.csv", '{"id": 1, "confidence": 0}', "found JSON", "mv .*/a.csv .*/a.jsonl$"),
        ("a.csv", '[{"id": 1, "confidence": 0}]', "found JSON", "mv .*/a.csv .*/a.json$"),
        ("a.tsv", '{"id": 1, "confidence": 0}', "found JSON", "mv .*/a.tsv .*/a.jsonl$"),
        ("a.csv", "q1,0.5", "no columns id, confidence", "write a first line .*id,confidence$"),
    ],
)
def test_a_table_of_another_kind_is_recognised(name, head, found, fix, tmp_path):
    path = tmp_path / name
    path.write_text(f"{head}\n{head}\n")
    with pytest.raises(InputError, match=f"{found}.*; fix: .*{fix}"):
        textfiles.read_records(path, required=("id", "confidence"))


def test_rejected_rows_are_quoted_from_any_format(tmp_path):
    import pyarrow
    import pyarrow.parquet

    rows = [{"id": "a", "n": 1}, {"id": "b", "n": None}]
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=3))
    (tmp_path / "a.csv").write_text("id,n\na,1\nb,\n")
    (tmp_path / "a.tsv").write_text("id\tn\na\t1\nb\t\n")
    (tmp_path / "a.jsonl").write_text('{"n":1,  "id":"a"}\n{"n":null,  "id":"b"}\n')
    expected = {
        "a.parquet": '{"id": "b", "n": null}',
        "a.json": '{"id": "b", "n": null}',
        "a.csv": "b,",
        "a.tsv": "b\t",
        "a.jsonl": '{"n":null,  "id":"b"}',
    }
    for name, raw in expected.items():
        path = tmp_path / name
        records = textfiles.read_records(path, rename={"n": "p"})
        parsed = textfiles.parse_rows(records, lambda each: fields.number(each, "p"))
        [rejected] = parsed.rejected
        assert rejected.raw == raw, name
        [again] = textfiles.quoted([textfiles.Rejected(str(path), rejected.line, "why")])
        assert again.raw == raw, name


def test_a_pipe_is_refused_before_it_can_hang(tmp_path):
    import os

    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(InputError, match="expected a regular file"):
        textfiles.read_records(tmp_path / "a.jsonl")


def test_a_file_with_more_bad_rows_than_good_ones_is_refused_with_the_reasons(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n{"id": NaN}\n{"id": Infinity}\n')
    with pytest.raises(InputError, match=r"kept 1 of 3 rows \(2 x id=NaN.*first at line 2"):
        textfiles.check_kept(textfiles.read_records(path), path)
    path.write_text("")
    with pytest.raises(InputError, match="kept 0 of 0 rows"):
        textfiles.check_kept(textfiles.read_records(path), path)


def test_rows_that_a_parser_refuses_join_the_rejected_ones_in_order(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"p": 0.1}\n{"p": 2}\nnot json\n{"p": "0.5"}\n{"p": true}\n{"p": 1}\n')
    records = textfiles.read_records(path)
    parsed = textfiles.parse_rows(records, lambda each: fields.number(each, "p", 0.0, 1.0))
    assert parsed.rows == [0.1, 1.0]
    assert [each.line for each in parsed.rejected] == [2, 3, 4, 5]
    assert parsed.rejected[0].reason == "p=2: expected a number in [0,1]"


def test_numbers_are_read_from_text_in_csv_rows_only():
    assert fields.number(Row(1, {"p": "0.9"}, is_text=True), "p") == 0.9
    for value in ("0.9", "high", True, None, [0.5]):
        with pytest.raises(RowFault, match="expected a number"):
            fields.number(Row(1, {"p": value}), "p")
    for text in ("nan", "inf", "1_0", "", "0x1"):
        with pytest.raises(RowFault, match="expected a number"):
            fields.number(Row(1, {"p": text}, is_text=True), "p")


def test_integer_and_text_ids_share_one_exact_name_space():
    big = 2**53 + 1
    assert fields.identifier(Row(1, {"id": big})) == str(big)
    assert fields.identifier(Row(1, {"id": 1})) == fields.identifier(Row(1, {"id": "1"}))
    for value in (1.0, True, "", "  ", None):
        with pytest.raises(RowFault):
            fields.identifier(Row(1, {"id": value}))


def test_a_list_of_objects_and_a_document_are_read_whole(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[\n {"id": "a"},\n 3,\n {"id": "b"}]')
    records = textfiles.read_records(path)
    assert [each.data["id"] for each in records.rows] == ["a", "b"]
    assert records.rejected[0].line == 2
    assert textfiles.read_json(path)[0] == {"id": "a"}
    path.write_text('{"data": [1,\n 2, ')
    with pytest.raises(InputError, match="line 2 column"):
        textfiles.read_json(path)


def test_reading_leaves_the_process_as_it_was(tmp_path):
    """The CSV module's cell limit is global; reading a long cell must not move it."""
    import csv

    before = csv.field_size_limit()
    path = tmp_path / "a.csv"
    path.write_text("id,text\n1," + "x" * 200_000 + "\n")
    assert len(textfiles.read_records(path).rows[0].data["text"]) == 200_000
    assert csv.field_size_limit() == before
