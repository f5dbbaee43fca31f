"""Deep verification: documents of a version read again from their sources, encoded again, compared id by id.

The sources are found as the build found them, by the spec in build.json or one given by hand. An input that changed or
is gone since is told: it says nothing about the version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import InputError, TokenizerError
from tokenloom.storage.canonical import canonical_json
from tokenloom.storage.filesystem import Store
from tokenloom.storage.keys import content_hashes
from tokenloom.storage.remote import AnyStore
from tokenloom.storage.shard import ShardHeader, read_header, token_dtype
from tokenloom.storage.verification import Damage
from tokenloom.storage.versions import read_listed, version_path
from tokenloom.tasks import progress
from tokenloom.tasks.inputs import InputFile, find_inputs
from tokenloom.tasks.reread import read_rows
from tokenloom.tasks.rules import Place
from tokenloom.tasks.shuffle import SAMPLE_DTYPE
from tokenloom.tasks.verify import NUM_SAMPLES, Sample, Subject
from tokenloom.tokenizers import Tokenizer, load_tokenizer
from tokenloom.tokenizers.base import text_bytes

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec import BuildSpec

_TOKENIZER = "tokenizer/"
_JOB_SAMPLES = 50


@dataclass(frozen=True)
class EncodeJob:
    """Documents of one input to encode again; `samples` are in the order of their rows."""

    store: AnyStore
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
    chosen = sorted(samples, key=lambda sample: (sample[1], sample[0]))[:NUM_SAMPLES]
    by_input: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in chosen:
        by_input[_field(sample, "input_index")].append(sample)
    store = subject.store
    found, warnings = find_inputs(spec, store if isinstance(store, Store) else None)
    by_path = {(file.source, file.path): file for file in found}
    manifest, jobs = subject.manifest, []
    tokenizer_files = {
        name.removeprefix(_TOKENIZER): read_listed(subject.store, manifest, name)
        for name in manifest["files"]
        if name.startswith(_TOKENIZER)
    }
    transform = spec.documents.transform.function if spec.documents.transform else None
    for index, mine in sorted(by_input.items()):
        known = subject.inputs[index]
        file = by_path.get((known["source"], known["path"]))
        if file is None or file.fingerprint != known["fingerprint"]:
            why = "source gone" if file is None else "source changed"
            warnings.append(
                f"{why}: {known['source']}: {known['path']}; {len(mine):,} of its documents are not compared"
            )
            continue
        mine.sort(key=lambda sample: _field(sample, "row"))
        for start in range(0, len(mine), _JOB_SAMPLES):
            jobs.append(
                EncodeJob(
                    subject.store,
                    manifest["version"],
                    file,
                    manifest["spec"]["tokenizer"],
                    tokenizer_files,
                    manifest["tokenizer"]["fingerprint"],
                    transform,
                    mine[start : start + _JOB_SAMPLES],
                )
            )
    return jobs, warnings


def encode_again(jobs: Sequence[EncodeJob]) -> list[Encoded]:
    """Run some jobs, one after the other; run in a worker."""
    return [_encode_again(job) for job in jobs]


def _encode_again(job: EncodeJob) -> Encoded:
    progress.report(progress.Working(f"reading documents of {job.file.url} again"))
    wanted = {_field(sample, "row"): sample for sample in job.samples}
    headers: dict[str, ShardHeader] = {}
    problems: defaultdict[str, list[str]] = defaultdict(list)
    found = 0
    try:
        tokenizer = _tokenizer(job)
        for texts, rows, place in read_rows(job.file, sorted(wanted), job.transform):
            mine = [wanted[row] for row in rows]
            _compare(job, tokenizer, headers, texts, mine, place, problems)
            found += len(rows)
            progress.report(progress.Advanced(len(rows), 0, 0, len(rows)))
    except (InputError, TokenizerError) as error:
        return Encoded(found, _damages(job, problems), [f"not compared: {error}"])
    gone = len(wanted) - found
    warnings = [f"{job.file.url}: {gone} of its rows can't be read any more"] if gone else []
    return Encoded(found, _damages(job, problems), warnings)


def _damages(job: EncodeJob, problems: dict[str, list[str]]) -> list[Damage]:
    return [
        Damage(version_path(job.version, name), "; ".join(mine[:3] + [f"and {len(mine) - 3} more"] * (len(mine) > 3)))
        for name, mine in sorted(problems.items())
    ]


def _compare(
    job: EncodeJob,
    tokenizer: Tokenizer,
    headers: dict[str, ShardHeader],
    texts: pa.Array,
    samples: list[Sample],
    place: Place,
    problems: defaultdict[str, list[str]],
) -> None:
    """Compare texts' hashes and ids with what stands in the shards; texts and samples are in the same order."""
    texts = texts.fill_null("")
    content = content_hashes(*text_bytes(texts)).tolist()
    encoded = tokenizer.encode(texts, token_dtype(tokenizer.vocab_size))
    ids = np.split(encoded.tokens, np.cumsum(encoded.num_tokens, dtype=np.int64)[:-1])
    for sample, hashes, again in zip(samples, content, ids, strict=True):
        name, where = sample[0], f"{place(_field(sample, 'row'))}, token {_field(sample, 'start')}"
        if hashes != [_field(sample, "content_high"), _field(sample, "content_low")]:
            problems[name].append(f"{where}: its source gives another text")
        elif not np.array_equal(_stored(job, headers, sample), again):
            problems[name].append(f"{where}: encoded again, its ids differ")


def _stored(job: EncodeJob, headers: dict[str, ShardHeader], sample: Sample) -> Any:
    """Return the ids of a document as they stand in its shard."""
    path = version_path(job.version, sample[0])
    if path not in headers:
        headers[path] = read_header(partial(job.store.read_range, path), job.store.place(path))
    header = headers[path]
    start = header.tokens_start + _field(sample, "start") * header.token_bytes
    end = start + _field(sample, "num_tokens") * header.token_bytes
    return np.frombuffer(job.store.read_range(path, start, end), header.dtype)


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
    import json

    return load_tokenizer(json.loads(definition), dict(files))


def _field(sample: Sample, name: str) -> int:
    return sample[1][SAMPLE_DTYPE.names.index(name)]  # type: ignore[union-attr]
