"""The formats of exports, one module each; FORMATS is the table."""

from __future__ import annotations

from tokenloom.tasks.exporting.formats.base import ExportFormat
from tokenloom.tasks.exporting.formats.datatrove import Datatrove
from tokenloom.tasks.exporting.formats.hugging_face import HuggingFace
from tokenloom.tasks.exporting.formats.litdata import LitData
from tokenloom.tasks.exporting.formats.llmc import Llmc
from tokenloom.tasks.exporting.formats.mds import Mds
from tokenloom.tasks.exporting.formats.megatron import Megatron
from tokenloom.tasks.exporting.formats.nanogpt import NanoGpt
from tokenloom.tasks.exporting.formats.olmo import Olmo
from tokenloom.tasks.exporting.formats.parquet import Parquet

_ALL = (Megatron(), Olmo(), Llmc(), NanoGpt(), Datatrove(), Mds(), LitData(), HuggingFace(), Parquet())

#: The formats by name.
FORMATS: dict[str, ExportFormat] = {each.name: each for each in _ALL}
