"""Deep verification: compare sampled documents of a version with their sources.

The sources are found as the build found them: by the spec in build.json, or by one given by hand. An input that has
changed or is gone since then is reported as a warning: it says nothing about the version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenloom.errors import InputError, TokenizerError
from tokenloom.storage.formats.keys import hash_of_ids
from tokenloom.storage.formats.shard import ShardHeader, read_header
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification.file_checks import Damage
from tokenloom.storage.versions.published import read_tokenizer_files, version_path
from tokenloom.tasks.encoding.job_tokenizer import load_job_tokenizer
from tokenloom.tasks.planning.inputs import InputFile, check_unchanged, find_inputs
from tokenloom.tasks.running import progress
from tokenloom.tasks.verification.reencoding import encode_again
from tokenloom.tasks.verification.sampling import JOB_SAMPLES, ChosenDocument
from tokenloom.tasks.verification.verify import OpenedVersion
from tokenloom.tokenizers import Tokenizer

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec.build_spec import BuildSpec

_MAX_NAMED = 3  # documents that a message about a shard names


@dataclass(frozen=True)
class DeepJob:
    """Documents of one input, in the order of its rows, to encode again and to compare with the shards of a version.

    `tokenizer_files` are the version's.
    """

    store: Store
    version: str
    file: InputFile
    definition: dict[str, Any]
    tokenizer_fingerprint: str
    tokenizer_files: dict[str, bytes]
    transform: str | None
    documents: list[ChosenDocument]


@dataclass(frozen=True)
class _Comparison:
    """How a document that was encoded again compares with its shard; `place` names its row in a message.

    `has_same_ids` is False where the text differs.
    """

    document: ChosenDocument
    place: str
    has_same_text: bool
    has_same_ids: bool


@dataclass(frozen=True)
class EncodingReport:
    """What a job found: how many documents it compared, damages, and why others could not be compared."""

    num_documents: int
    damages: list[Damage]
    warnings: list[str]


def deep_jobs(
    subject: OpenedVersion, chosen: Iterable[ChosenDocument], spec: BuildSpec
) -> tuple[list[DeepJob], list[str]]:
    """Return jobs that encode documents again, and warnings for those that can't be read.

    Args:
        subject: with manifest and inputs.
        chosen: of all undamaged shards.
        spec: says where the sources are.
    """
    assert subject.inputs is not None
    inputs, warnings = find_inputs(spec, subject.store)
    by_path = {(file.source, file.path): file for file in inputs}
    make_job = _job_maker(subject, spec)
    jobs = []
    for input_index, group in groupby(sorted(chosen), key=attrgetter("input_index")):
        documents = list(group)
        known = subject.inputs[input_index]
        file = by_path.get((known.source, known.path))
        if file is None or file.fingerprint != known.fingerprint:
            what = f"{known.source}: {known.path}; {len(documents):,} of its documents are not compared"
            warnings.append(f"source {'gone' if file is None else 'changed'}: {what}")
            continue
        parts = [documents[start : start + JOB_SAMPLES] for start in range(0, len(documents), JOB_SAMPLES)]
        jobs += [make_job(file, part) for part in parts]
    return jobs, warnings


def _job_maker(subject: OpenedVersion, spec: BuildSpec) -> Callable[[InputFile, list[ChosenDocument]], DeepJob]:
    """Return a function that makes a job of a file and documents; raises FormatError for a damaged tokenizer file."""
    manifest, version = subject.manifest, subject.version
    assert manifest is not None and version is not None
    files = read_tokenizer_files(subject.store, manifest)
    definition, fingerprint = manifest.tokenizer_definition, manifest.tokenizer.fingerprint
    transform = spec.documents.transform.function if spec.documents.transform else None

    def make_job(file: InputFile, documents: list[ChosenDocument]) -> DeepJob:
        return DeepJob(subject.store, version, file, definition, fingerprint, files, transform, documents)

    return make_job


def verify_encoding(job: DeepJob) -> EncodingReport:
    """Encode the documents of a job again and compare them with their shards; runs in a worker."""
    try:
        tokenizer = load_job_tokenizer(job.definition, job.tokenizer_fingerprint, job.tokenizer_files)
        found = _compare(job, tokenizer)
        compared = [one for one in found if one.has_same_text or not job.transform]
        damages = _damages(job, compared)
        if damages:
            check_unchanged(job.file)  # since its fingerprint was compared
    except (InputError, TokenizerError) as error:
        return EncodingReport(0, [], [f"not compared: {error}"])
    warnings = []
    if num_gone := len(job.documents) - len(found):
        warnings.append(f"{job.file.url}: {num_gone} of its rows can no longer be read")
    if num_other := len(found) - len(compared):
        warnings.append(f"documents.transform {job.transform} gives different texts: {num_other:,} not compared")
    return EncodingReport(len(compared), damages, warnings)


def _compare(job: DeepJob, tokenizer: Tokenizer) -> list[_Comparison]:
    """Encode the documents of a job again and return how each compares; leaves out those whose rows are gone."""
    wanted = {document.row: document for document in job.documents}
    stored_hash = _stored_hash(job)
    found = []
    for again in encode_again(job.file, sorted(wanted), job.transform, tokenizer, job.file.num_bytes):
        document = wanted[again.row]
        has_same_text = again.content == document.content
        has_same_ids = has_same_text and again.ids_hash == stored_hash(document)
        found.append(_Comparison(document, again.place, has_same_text, has_same_ids))
        progress.report(progress.Advanced(num_documents=1, done=1))
    return found


def _stored_hash(job: DeepJob) -> Callable[[ChosenDocument], int]:
    """Return a function that reads the ids of a document from its shard and returns their hash."""

    @cache
    def header_of(path: str) -> ShardHeader:
        return read_header(job.store, path)

    def stored_hash(document: ChosenDocument) -> int:
        path = version_path(job.version, document.shard_name)
        header = header_of(path)
        start = header.tokens_start + document.start * header.token_bytes
        end = start + document.num_tokens * header.token_bytes
        return hash_of_ids(np.frombuffer(job.store.read_range(path, start, end), header.dtype))

    return stored_hash


def _damages(job: DeepJob, found: Iterable[_Comparison]) -> list[Damage]:
    """Return the shards whose documents differ, with the first of them."""
    problems: defaultdict[str, list[str]] = defaultdict(list)
    for one in found:
        where = f"{one.place}, token {one.document.start}"
        if not one.has_same_text:
            problems[one.document.shard_name].append(f"{where}: its source gives another text")
        elif not one.has_same_ids:
            problems[one.document.shard_name].append(f"{where}: encoded again, its ids differ")
    return [
        Damage(version_path(job.version, name), "; ".join([*what[:_MAX_NAMED], *_more(what)]))
        for name, what in sorted(problems.items())
    ]


def _more(what: list[str]) -> list[str]:
    return [f"and {len(what) - _MAX_NAMED} more"] if len(what) > _MAX_NAMED else []
