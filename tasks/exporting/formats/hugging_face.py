"""A dataset of Hugging Face as `save_to_disk` writes it, for `load_from_disk`: TRL, axolotl, LLaMA-Factory.

A folder a split with Arrow streams, dataset_info.json with the types of columns and state.json with the names of the
files; dataset_dict.json beside the folders names the splits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa
import xxhash

from tokenloom.storage.formats.records import JsonObject, fields_of
from tokenloom.tasks.exporting.formats import rows
from tokenloom.tasks.exporting.formats.base import ExportUnit, VersionFacts
from tokenloom.tasks.exporting.hashed_file import FileRecord, HashedFile


class HuggingFace(rows.TableFormat):
    """SPLIT/data-00000-of-00001.arrow and the JSON files beside it."""

    name = "huggingface"
    part_bytes = rows.PART_BYTES

    def files(self, facts: VersionFacts, split: str, index: int, count: int) -> tuple[str, ...]:
        """See ExportFormat.files."""
        return (f"{split}/data-{index:05}-of-{count:05}.arrow",)

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Sequence[HashedFile]) -> None:
        """Write an Arrow stream."""
        with pa.ipc.new_stream(pa.PythonFile(files[0], "w"), rows.schema(facts)) as writer:
            for batch in rows.record_batches(unit, facts):
                writer.write_batch(batch)

    def finish(
        self, facts: VersionFacts, units: Sequence[ExportUnit], records: Mapping[str, FileRecord]
    ) -> dict[str, bytes]:
        """Return the JSON files."""
        files = {"dataset_dict.json": _json({"splits": list(facts.splits)})}
        for split in facts.splits:
            names = [unit.files[0].rpartition("/")[2] for unit in units if unit.split == split]
            files[f"{split}/dataset_info.json"] = _json(_info(facts))
            files[f"{split}/state.json"] = _json(_state(split, names, units[0].documents.version, facts))
        return files


def _json(value: JsonObject) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()


def _info(facts: VersionFacts) -> JsonObject:
    """Return the types of columns; releases of datasets before and after 4.0 know `Sequence`."""
    features = {
        field.name: {"_type": "Sequence", "feature": {"_type": "Value", "dtype": str(field.type.value_type)}}
        for field in rows.schema(facts)
    }
    return {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}


def _state(split: str, names: list[str], version: str, facts: VersionFacts) -> JsonObject:
    """Return what datasets keeps of a split; the fingerprint names it in caches of what is computed from it."""
    identity = f"{version}/{split}/{json.dumps(fields_of(facts.options), sort_keys=True)}"
    return {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": xxhash.xxh3_64_hexdigest(identity.encode()),
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
