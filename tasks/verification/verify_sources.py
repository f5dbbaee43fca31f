"""Deep verification: compare sampled documents of a version with their sources.

The sources are found as the build found them: by the spec in build.json, or by one given by hand. An input that has
changed or is gone since then is reported as a warning: it says nothing about the version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tokenloom.chat.definition import CHAT_RULES, ChatDefinition, version_chat
from tokenloom.errors import InputError, SpecError, TokenizerError
from tokenloom.storage.verification.file_checks import Damage
from tokenloom.storage.versions.published import read_tokenizer_files, version_path
from tokenloom.tasks.encoding.documents import document_encoder
from tokenloom.tasks.encoding.job_tokenizer import load_job_tokenizer
from tokenloom.tasks.planning.inputs import InputFile, check_unchanged, find_inputs
from tokenloom.tasks.running import progress
from tokenloom.tasks.sources.naming import with_line
from tokenloom.tasks.verification.reencoding import encode_again
from tokenloom.tasks.verification.sampling import JOB_SAMPLES, ChosenDocument
from tokenloom.tasks.verification.verify import OpenedVersion

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec.build_spec import BuildSpec

_MAX_NAMED = 3  # documents that a message about a shard names


@dataclass(frozen=True)
class DeepJob:
    """Documents of one input, in the order of its rows, to encode again and to compare with the shards of a version.

    `tokenizer_files` are the version's, and so is `chat`, which renders the documents if they are conversations.
    """

    version: str
    file: InputFile
    definition: dict[str, Any]
    tokenizer_fingerprint: str
    tokenizer_files: dict[str, bytes]
    transform: str | None
    documents: list[ChosenDocument]
    chat: ChatDefinition | None = None


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

    Raises FormatError for a damaged tokenizer file or chat definition.
    """
    manifest = subject.manifest
    assert manifest is not None and subject.inputs is not None
    inputs, warnings = find_inputs(spec, subject.store)
    by_path = {(file.source, file.path): file for file in inputs}
    files = read_tokenizer_files(subject.store, manifest)
    tokenizer = manifest.tokenizer_definition, manifest.tokenizer.fingerprint, files
    transform = spec.documents.transform.function if spec.documents.transform else None
    chat = version_chat(subject.store, manifest)
    jobs = []
    for input_index, group in groupby(sorted(chosen), key=attrgetter("input_index")):
        documents = list(group)
        known = subject.inputs[input_index]
        file = by_path.get((known.source, known.path))
        if file is None or file.fingerprint != known.fingerprint:
            what = f"{known.source}: {known.path}; {len(documents):,} of its documents are not compared"
            warnings.append(f"source {'gone' if file is None else 'changed'}: {what}")
            continue
        own_chat = chat if file.holds_conversations else None
        if own_chat is not None and own_chat.rules != CHAT_RULES:
            what = f"source {known.source}: {known.path}; {len(documents):,} of its documents are not compared"
            warnings.append(f"conversations of another release's rules: {what}; build the version again")
            continue
        parts = [documents[start : start + JOB_SAMPLES] for start in range(0, len(documents), JOB_SAMPLES)]
        jobs += [DeepJob(manifest.version, file, *tokenizer, transform, part, own_chat) for part in parts]
    return jobs, warnings


def verify_encoding(job: DeepJob) -> EncodingReport:
    """Encode the documents of a job again and compare them with their shards; runs in a worker."""
    wanted = {document.row: document for document in job.documents}
    problems: defaultdict[str, list[str]] = defaultdict(list)
    num_found = num_other = 0
    try:
        tokenizer = load_job_tokenizer(job.definition, job.tokenizer_fingerprint, job.tokenizer_files)
        encoder = document_encoder(tokenizer, job.chat)
        for again in encode_again(job.file, sorted(wanted), job.transform, encoder, job.file.num_bytes):
            document, num_found = wanted[again.row], num_found + 1
            has_same_text = again.content == document.content
            if not has_same_text and job.transform:
                num_other += 1
            elif not has_same_text or again.ids_hash != document.ids_hash:
                ids = "ids or classes" if job.chat is not None or job.file.has_masks else "ids"
                what = f"encoded again, its {ids} differ" if has_same_text else "its source gives another text"
                problems[document.shard_name].append(f"{again.place}, token {document.start}: {what}")
            progress.report(progress.Advanced(num_documents=1, done=1))
        if problems:
            check_unchanged(job.file)  # it may have changed since its fingerprint was compared
    except (InputError, SpecError, TokenizerError) as error:
        return EncodingReport(0, [], [f"not compared: {with_line(str(error))}"])
    warnings = []
    if num_gone := len(wanted) - num_found:
        warnings.append(f"{job.file.url}: {num_gone} of its rows can no longer be read")
    if num_other:
        warnings.append(f"documents.transform {job.transform} gives different texts: {num_other:,} not compared")
    damages = [
        Damage(version_path(job.version, name), "; ".join([*map(with_line, what[:_MAX_NAMED]), *_more(what)]))
        for name, what in sorted(problems.items())
    ]
    return EncodingReport(num_found - num_other, damages, warnings)


def _more(what: list[str]) -> list[str]:
    return [f"and {len(what) - _MAX_NAMED} more"] if len(what) > _MAX_NAMED else []
