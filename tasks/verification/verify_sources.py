"""Deep verification: documents of a version read again from their sources, encoded again, compared id by id.

The sources are found as the build found them, by the spec in build.json or one given by hand. An input that changed or
is gone since is told: it says nothing about the version.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import InputError, TokenizerError
from tokenloom.storage.formats.canonical import canonical_json
from tokenloom.storage.formats.keys import content_hashes
from tokenloom.storage.formats.shard import ShardHeader, read_header, token_dtype
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification.verification import Damage
from tokenloom.storage.versions.versions import read_listed, version_path
from tokenloom.tasks.inputs import InputFile, check_unchanged, find_inputs
from tokenloom.tasks.rows.rules import Place
from tokenloom.tasks.running import progress
from tokenloom.tasks.verification.reread import read_rows, sharing_blocks
from tokenloom.tasks.verification.samples import JOB_SAMPLES, NUM_SAMPLES, sample_field
from tokenloom.tasks.verification.verify import Sample, Subject
from tokenloom.tokenizers import Tokenizer, load_tokenizer
from tokenloom.tokenizers.base import text_bytes

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec.build_spec import BuildSpec

_TOKENIZER = "tokenizer/"
_MOST_TOLD = 3  # documents of a shard


@dataclass(frozen=True)
class EncodeJob:
    """Documents of one input to encode again; `samples` are in the order of their rows."""

    store: Store
    version: str
    file: InputFile
    definition: dict[str, Any]
    tokenizer_files: dict[str, bytes]
    tokenizer_fingerprint: str
    transform: str | None
    samples: list[Sample]


@dataclass(frozen=True)
class Encoded:
    """What a job found: documents compared, damages, and why others could not be compared."""

    num_documents: int
    damages: list[Damage]
    warnings: list[str]


def encode_jobs(subject: Subject, samples: Iterable[Sample], spec: BuildSpec) -> tuple[list[EncodeJob], list[str]]:
    """Choose the documents with the least hashes of what the shards proposed; return jobs, and what can't be read.

    Args:
        subject: with manifest and inputs.
        samples: of all undamaged shards.
        spec: says where the sources are.
    """
    assert subject.manifest is not None and subject.inputs is not None
    by_input: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: (sample[1], sample[0]))[:NUM_SAMPLES]:
        by_input[sample_field(sample[1], "input_index")].append(sample)
    found, warnings = find_inputs(spec, subject.store)
    by_path = {(file.source, file.path): file for file in found}
    make_job = _job_maker(subject.store, subject.manifest, spec)
    jobs = []
    for index, mine in sorted(by_input.items()):
        known = subject.inputs[index]
        file = by_path.get((known["source"], known["path"]))
        if file is None or file.fingerprint != known["fingerprint"]:
            what = f"{known['source']}: {known['path']}; {len(mine):,} of its documents are not compared"
            warnings.append(f"source {'gone' if file is None else 'changed'}: {what}")
            continue
        mine.sort(key=lambda sample: sample_field(sample[1], "row"))
        parts = [mine[start : start + JOB_SAMPLES] for start in range(0, len(mine), JOB_SAMPLES)]
        jobs += [make_job(file=file, samples=part) for part in parts]
    return jobs, warnings


def _job_maker(store: Store, manifest: dict[str, Any], spec: BuildSpec) -> Callable[..., EncodeJob]:
    """Return what makes a job of a file and samples; raises FormatError if a file of the tokenizer is damaged."""
    names = [name for name in manifest["files"] if name.startswith(_TOKENIZER)]
    return partial(
        EncodeJob,
        store=store,
        version=manifest["version"],
        definition=manifest["spec"]["tokenizer"],
        tokenizer_files={name.removeprefix(_TOKENIZER): read_listed(store, manifest, name) for name in names},
        tokenizer_fingerprint=manifest["tokenizer"]["fingerprint"],
        transform=spec.documents.transform.function if spec.documents.transform else None,
    )


def encode_again(jobs: Sequence[EncodeJob]) -> list[Encoded]:
    """Run some jobs, one after the other; run in a worker."""
    return [_encode_again(job) for job in jobs]


def _encode_again(job: EncodeJob) -> Encoded:
    progress.report(progress.Working(f"reading documents of {job.file.url} again"))
    wanted = {sample_field(sample[1], "row"): sample for sample in job.samples}
    comparison = _Comparison(job)
    num_found, warnings = 0, []
    try:
        tokenizer = _tokenizer(job)
        with sharing_blocks(job.file, len(wanted)):
            for texts, rows, place in read_rows(job.file, sorted(wanted), job.transform):
                comparison.take(tokenizer, texts, [wanted[row] for row in rows], place)
                num_found += len(rows)
                progress.report(progress.Advanced(len(rows), 0, 0, len(rows)))
        if num_found != len(wanted):
            warnings.append(f"{job.file.url}: {len(wanted) - num_found} of its rows can't be read any more")
        if comparison.damages():
            check_unchanged(job.file)  # since its fingerprint was compared
    except (InputError, TokenizerError) as error:
        return Encoded(0, [], [*warnings, f"not compared: {error}"])
    if comparison.num_unsteady:
        warnings.append(
            f"documents.transform {job.transform} gives other texts: {comparison.num_unsteady:,} not compared"
        )
    return Encoded(num_found - comparison.num_unsteady, comparison.damages(), warnings)


class _Comparison:
    """Compares documents with what stands in the shards."""

    def __init__(self, job: EncodeJob) -> None:
        self._job = job
        self._headers: dict[str, ShardHeader] = {}
        self._problems: defaultdict[str, list[str]] = defaultdict(list)
        self.num_unsteady = 0  # documents of which the transform makes another text than it did

    def take(self, tokenizer: Tokenizer, texts: pa.Array, samples: list[Sample], place: Place) -> None:
        """Encode texts; those of `samples`, in the same order."""
        texts = texts.fill_null("")
        content = content_hashes(*text_bytes(texts)).tolist()
        encoded = tokenizer.encode(texts, token_dtype(tokenizer.vocab_size))
        ids = np.split(encoded.tokens, np.cumsum(encoded.num_tokens, dtype=np.int64)[:-1])
        for sample, hashes, again in zip(samples, content, ids, strict=True):
            where = f"{place(sample_field(sample[1], 'row'))}, token {sample_field(sample[1], 'start')}"
            is_same = hashes == [sample_field(sample[1], "content_high"), sample_field(sample[1], "content_low")]
            if not is_same and self._job.transform:
                self.num_unsteady += 1
            elif not is_same:
                self._problems[sample[0]].append(f"{where}: its source gives another text")
            elif not np.array_equal(self._stored(sample), again):
                self._problems[sample[0]].append(f"{where}: encoded again, its ids differ")

    def _stored(self, sample: Sample) -> Any:
        """Return the ids of a document as they stand in its shard."""
        store, path = self._job.store, version_path(self._job.version, sample[0])
        if path not in self._headers:
            self._headers[path] = read_header(partial(store.read_range, path), store.place(path))
        header = self._headers[path]
        start = header.tokens_start + sample_field(sample[1], "start") * header.token_bytes
        end = start + sample_field(sample[1], "num_tokens") * header.token_bytes
        return np.frombuffer(store.read_range(path, start, end), header.dtype)

    def damages(self) -> list[Damage]:
        """Return the shards whose documents differ, with the first of them."""
        return [
            Damage(version_path(self._job.version, name), "; ".join([*told[:_MOST_TOLD], *_more(told)]))
            for name, told in sorted(self._problems.items())
        ]


def _more(told: list[str]) -> list[str]:
    return [f"and {len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []


def _tokenizer(job: EncodeJob) -> Tokenizer:
    tokenizer = _load_tokenizer(canonical_json(job.definition), tuple(sorted(job.tokenizer_files.items())))
    if tokenizer.fingerprint != job.tokenizer_fingerprint:
        raise TokenizerError(
            f"tokenizer {tokenizer.name} ({tokenizer.kind}) encodes otherwise here than where the version was built; "
            "verify with the library versions of its build.json"
        )
    return tokenizer


@lru_cache(maxsize=1)
def _load_tokenizer(definition: bytes, files: tuple[tuple[str, bytes], ...]) -> Tokenizer:
    return load_tokenizer(json.loads(definition), dict(files))
