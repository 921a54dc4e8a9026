"""worldfacts as a TFDS builder: `WorldFacts(data_dir=DIR, config="questions")`.

Writes ArrayRecord, so that neither writing nor `as_data_source` needs TensorFlow. Texts come back
as UTF-8 bytes. This module imports tensorflow_datasets; the rest of worldfacts does not.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_datasets as tfds

from calibjax.sources import worldfacts

_TEXT, _TEXTS = tfds.features.Text, tfds.features.Sequence
_QUESTION = ("id", "question", "kind", "relation", "subject")
_PASSAGE = ("id", "title", "text")


class WorldFacts(tfds.core.GeneratorBasedBuilder):
    """Config "questions": splits train, validation, test. Config "passages": split corpus."""

    name = "worldfacts"
    VERSION = tfds.core.Version(worldfacts.VERSION)
    BUILDER_CONFIGS = [
        tfds.core.BuilderConfig(name="questions", description="Questions and their gold passages"),
        tfds.core.BuilderConfig(name="passages", description="The passages of all splits"),
    ]

    def __init__(self, *, file_format: str = "array_record", **kwargs: Any) -> None:
        super().__init__(file_format=file_format, **kwargs)

    def prepare(self) -> "WorldFacts":
        """`download_and_prepare` that never looks for a copy on the network."""
        self.download_and_prepare(
            download_config=tfds.download.DownloadConfig(try_download_gcs=False)
        )
        return self

    def _info(self) -> tfds.core.DatasetInfo:
        names = _QUESTION if self.builder_config.name == "questions" else _PASSAGE
        features = {name: _TEXT() for name in names}
        if names is _QUESTION:
            features |= {"answers": _TEXTS(_TEXT()), "gold_ids": _TEXTS(_TEXT())}
        return tfds.core.DatasetInfo(
            builder=self,
            description=worldfacts.__doc__,
            features=tfds.features.FeaturesDict(features),
            # Countries, cities and elements stay in their order; keys are plain numbers then.
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> Mapping[str, Any]:
        if self.builder_config.name == "passages":
            return {"corpus": self._generate_examples("corpus")}
        return {split: self._generate_examples(split) for split in worldfacts.SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        if split == "corpus":
            yield from enumerate(dataclasses.asdict(passage) for passage in worldfacts.corpus())
            return
        for number, question in enumerate(worldfacts.load(split).questions):
            yield number, {
                "id": question.id,
                "question": question.question,
                "answers": list(question.answers),
                "gold_ids": list(question.gold_ids),
                **{name: question.meta[name] for name in ("kind", "relation", "subject")},
            }
