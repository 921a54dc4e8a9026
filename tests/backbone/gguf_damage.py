"""Damaged GGUF files: two dozen built on purpose, and seeded mutations of a good one.

Run as a script it loads mutations in a process of its own whose memory is limited, and prints a
line of JSON for each; the test judges the lines.
"""

import json
import resource
import struct
import sys
import time
from pathlib import Path

import numpy as np

U8, U32, TEXT, ARRAY = 0, 4, 8, 9
F32, Q8_0 = 0, 8
LENGTHS = (0, 1, 2**31, 2**63, 2**64 - 1)


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def tensor(name, dims, *, kind=F32, offset=0, rank=None):
    head = text(name) + struct.pack("<I", len(dims) if rank is None else rank)
    return head + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


def build(keys=(), tensors=(), data=b"", *, version=3, num_keys=None, num_tensors=None):
    counts = struct.pack(
        "<QQ",
        len(tensors) if num_tensors is None else num_tensors,
        len(keys) if num_keys is None else num_keys,
    )
    head = b"GGUF" + struct.pack("<I", version) + counts + b"".join(keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data


def array(kind, count, values=b""):
    return struct.pack("<IQ", kind, count) + values


GOOD = build([key("a", U32, b"\1\0\0\0")], [tensor("t", (8,))], b"\0" * 32)
ONE = b"\0" * 32
CRAFTED = {
    "array_of_2_63": build(num_keys=1)[:24] + key("", ARRAY, array(U8, 2**63)),
    "no_magic": b"GGML" + GOOD[4:],
    "only_magic": b"GGUF",
    "version_1": build(version=1),
    "version_4": build(version=4),
    "big_endian": build(version=3 << 24),
    "2_63_tensors": build(num_tensors=2**63),
    "2_63_keys": build(num_keys=2**63),
    "key_of_2_63_bytes": build(num_keys=1)[:24] + struct.pack("<Q", 2**63) + ONE,
    "text_of_2_64_bytes": build([text("a") + struct.pack("<IQ", TEXT, 2**64 - 1)]),
    "array_in_array": build([key("a", ARRAY, array(ARRAY, 1, array(ARRAY, 1)))]),
    "2_40_texts": build([key("a", ARRAY, array(TEXT, 2**40))]),
    "unknown_element_type": build([key("a", ARRAY, array(77, 1, ONE))]),
    "unknown_value_type": build([key("a", 13, ONE)]),
    "key_twice": build([key("a", U8, b"\1")] * 2),
    "key_not_utf8": build([key(b"\xff\xfe", U8, b"\1")]),
    "alignment_0": build([key("general.alignment", U32, b"\0\0\0\0")]),
    "alignment_3": build([key("general.alignment", U32, b"\3\0\0\0")]),
    "alignment_text": build([key("general.alignment", TEXT, text("32"))]),
    "tensor_twice": build([], [tensor("t", (8,)), tensor("t", (8,), offset=32)], ONE * 2),
    "no_dimensions": build([], [tensor("t", ())], ONE),
    "2_32_dimensions": build([], [tensor("t", (8,), rank=2**32 - 1)], ONE),
    "dimension_0": build([], [tensor("t", (8, 0))], ONE),
    "dimensions_overflow": build([], [tensor("t", (2**63, 2**63, 2**63, 2))], ONE),
    "unknown_tensor_type": build([], [tensor("t", (8,), kind=99)], ONE),
    "part_of_a_block": build([], [tensor("t", (40,), kind=Q8_0)], ONE * 2),
    "offset_unaligned": build([], [tensor("t", (8,), offset=4)], ONE * 2),
    "offset_past_the_end": build([], [tensor("t", (8,), offset=2**40)], ONE),
    "tensor_past_the_end": build([], [tensor("t", (800,))], ONE),
    "tensors_overlap": build([], [tensor("t", (16,)), tensor("u", (8,), offset=32)], ONE * 2),
    "trailing_bytes": GOOD + ONE * 2,
}


def mutate(good, fields, seed):
    """Bit flip, cut, or a length field (its offset and size in `fields`) set to an extreme."""
    rng = np.random.default_rng(seed)
    data = bytearray(good)
    header = max(offset + size for offset, size in fields)
    choice = rng.integers(4)
    if choice == 0:  # anywhere
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    elif choice == 1:  # within the header, where it hurts
        data[rng.integers(header)] ^= 1 << rng.integers(8)
    elif choice == 2:
        del data[rng.integers(len(data)) :]
    else:
        offset, size = fields[rng.integers(len(fields))]
        value = LENGTHS[rng.integers(len(LENGTHS))] % 2 ** (8 * size)
        data[offset : offset + size] = value.to_bytes(size, "little")
    return bytes(data)


def length_fields(path):
    """Offset and size of every whole number that the header reader reads."""
    from calibjax.backbone import gguf_header

    found = []
    original = gguf_header._Cursor.number

    def recording(cursor, code, field):
        found.append((cursor.offset, struct.calcsize("<" + code)))
        return original(cursor, code, field)

    gguf_header._Cursor.number = recording
    try:
        gguf_header.read_header(path)
    finally:
        gguf_header._Cursor.number = original
    return found


def load(path):
    """Everything that loading does short of the device: header, tokenizer, weights."""
    from calibjax.backbone import gguf_file, weights

    checkpoint, fields = gguf_file.open_checkpoint(path)
    tokenizer = gguf_file.open_tokenizer(path, fields, trusted=True)
    arrays = dict(weights.assemble(checkpoint, np.float32))
    return tokenizer, arrays


def main(directory, start, stop):
    good = Path(directory, "good.gguf")
    fields = length_fields(good)
    load(good)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(start, stop):
        path = Path(directory, f"bad{seed}.gguf")
        path.write_bytes(mutate(good.read_bytes(), fields, seed))
        began = time.process_time()
        outcome = {"seed": seed, "error": "", "message": ""}
        try:
            _, arrays = load(path)
            outcome["finite"] = all(bool(np.isfinite(a).all()) for a in arrays.values())
        except Exception as error:
            outcome |= {"error": type(error).__name__, "message": str(error)}
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        outcome |= {"seconds": time.process_time() - began, "grown_mb": grown / 1024}
        print(json.dumps(outcome), flush=True)
        path.unlink()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
