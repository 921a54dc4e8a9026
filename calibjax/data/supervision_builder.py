"""The TFDS builder behind `supervision`; imported only when a set is written or read."""

import contextlib
import dataclasses
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from calibjax.records import SupervisionRow

VERSION = "1.0.0"
# tf.Example, in which TFDS stores rows, knows float32 alone; as bytes a float64 survives.
_EXACT = tfds.features.Tensor(shape=(), dtype=np.float64, encoding=tfds.features.Encoding.BYTES)
_FEATURES = {
    **{
        name: tfds.features.Text()
        for name in ("question_id", "passage_id", "query", "title", "text", "guidance")
    },
    "temperature": _EXACT,
    "label": _EXACT,
    "decisions": tfds.features.Sequence(tfds.features.Text()),
    # A Tensor decodes to an array at once; a Sequence of numbers goes through a Python list.
    "verdicts": tfds.features.Tensor(shape=(None,), dtype=np.int64),
}


class Supervision(tfds.core.GeneratorBasedBuilder):
    """Supervision rows in the order given, split "train"."""

    name = "supervision"
    VERSION = tfds.core.Version(VERSION)

    def __init__(self, rows: Sequence[SupervisionRow] = (), **kwargs: Any) -> None:
        self._rows = rows
        super().__init__(file_format="array_record", **kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(_FEATURES),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> Mapping[str, Any]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, row in enumerate(self._rows):
            example = dataclasses.asdict(row)
            example["decisions"] = list(row.decisions)
            example["verdicts"] = np.asarray(row.verdicts, np.int64)
            example["temperature"] = np.float64(row.temperature)
            example["label"] = np.float64(row.label)
            yield number, example


def write_shards(
    rows: Sequence[SupervisionRow], work: Path, num_shards: int
) -> tuple[Path, dict[str, int]]:
    """Writes the rows below `work`; the directory they are in, and rows per shard file."""
    builder = Supervision(rows, data_dir=str(work))
    config = tfds.download.DownloadConfig(try_download_gcs=False, num_shards=num_shards)
    with _quiet(), _same_bytes():
        builder.download_and_prepare(download_config=config)
    info = builder.info.splits["train"]
    files = [Path(name).name for name in info.filenames]
    return Path(builder.data_dir), dict(zip(sorted(files), info.shard_lengths, strict=True))


def read_examples(directory: Path, split: str) -> Iterator[dict[str, Any]]:
    """Examples of a finished directory, in order; texts are bytes."""
    source = tfds.builder_from_directory(str(directory)).as_data_source(split)
    for number in range(len(source)):
        yield source[number]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """TFDS prints a banner and draws three bars for each set; ours has progress of its own."""
    from tensorflow_datasets.core.utils import tqdm_utils

    was_active = tqdm_utils._active
    tfds.display_progress_bar(False)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        tfds.display_progress_bar(was_active)


@contextlib.contextmanager
def _same_bytes() -> Iterator[None]:
    """Protobuf orders a map anew in every process; sorted, the same rows make the same file."""
    from tensorflow_datasets.core import example_serializer

    kind = example_serializer.ExampleSerializer
    original = kind.serialize_example

    def serialize(self: Any, example: Any) -> bytes:
        return self.get_tf_example(example).SerializeToString(deterministic=True)

    kind.serialize_example = serialize
    try:
        yield
    finally:
        kind.serialize_example = original
