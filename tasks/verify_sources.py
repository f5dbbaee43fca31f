"""Deep verification: compare sampled documents of a version with their sources.

The sources are found as the build found them: by the spec in build.json, or by one given by hand. An input that has
changed or is gone since then is reported as a warning: it says nothing about the version.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokenloom.chat.conversation import CHAT_RULES, version_chat
from tokenloom.errors import FormatError, InputError, SpecError, TokenizerError
from tokenloom.storage.formats.manifest import BUILD, InputEntry, Manifest, given_options
from tokenloom.storage.stores.remote_errors import is_transient, reason_of
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification import Damage
from tokenloom.storage.versions.build_record import decode_build
from tokenloom.storage.versions.published import read_tokenizer_files, version_path
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.tasks.building.check import (
    Sample,
    choose_documents,
    compare_documents,
    divide_by_input,
)
from tokenloom.tasks.building.inputs import find_inputs
from tokenloom.tasks.building.plan import Build, row_rules
from tokenloom.tasks.running.steps import Job
from tokenloom.tasks.sources.hub import at_commit, commit_of
from tokenloom.tasks.sources.reader import with_line
from tokenloom.tasks.verify import OpenedVersion, Report

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec.build_spec import BuildSpec

_NONE_ENCODED = "no document was encoded again"
_MAX_NAMED = 3  # documents that a message about a shard names


Deep = tuple[Build | None, list[Job], list[str]]


def deep_jobs(subject: OpenedVersion, damaged: set[str], spec: BuildSpec | None) -> Deep:
    """Return the build of a version, samples of its undamaged shards, and the reasons why others can't be encoded.

    Args:
        subject: with its manifest.
        damaged: the paths of damaged files.
        spec: says where the sources are; None for the spec in build.json.
    """
    if subject.inputs is None:
        return None, [], [f"{_NONE_ENCODED}: inputs.json is damaged"]
    assert subject.manifest is not None  # it was readable, as its inputs were
    try:
        spec = spec or recorded_spec(subject.store, subject.manifest, subject.inputs)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if is_transient(error):
            raise
        return None, [], [f"{_NONE_ENCODED}: build.json does not say how ({reason_of(error)}); give --spec"]
    try:
        return _sample(subject.store, subject.manifest, subject.inputs, damaged, spec)
    except FormatError as error:  # a file of the tokenizer; the job that reads it reports it too
        return None, [], [f"{_NONE_ENCODED}: {error}"]


def _sample(store: Store, manifest: Manifest, known: list[InputEntry], damaged: set[str], spec: BuildSpec) -> Deep:
    undamaged = [
        StoredShard(store, manifest.version, entry)
        for entry in manifest.shards
        if damaged.isdisjoint(version_path(manifest.version, name) for name in entry.listed)
    ]
    inputs, warnings = find_inputs(spec, store)
    by_path = {(file.source, file.path): file for file in inputs}
    files = [by_path.get((entry.source, entry.path)) for entry in known]
    build = Build(
        store=store,
        dataset=manifest.dataset,
        version=manifest.version,
        tokenizer=manifest.tokenizer,
        definition=manifest.tokenizer_definition,
        rules=row_rules(spec),
        chat=version_chat(store, manifest),
        tokenizer_files=read_tokenizer_files(store, manifest),
    )
    jobs = []
    for documents in divide_by_input(choose_documents(undamaged, len(known)), files):
        index = documents[0].input_index
        file = files[index]
        what = f"{known[index].source}: {known[index].path}; {len(documents):,} of its documents are not compared"
        if file is None or file.fingerprint != known[index].fingerprint:
            warnings.append(f"source {'gone' if file is None else 'changed'}: {what}")
            continue
        chat = build.chat_of(file)
        if chat is not None and chat.rules != CHAT_RULES:
            warnings.append(f"conversations of another release's rules: source {what}; build the version again")
            continue
        jobs.append(Job(file.path, Sample(file, documents), len(documents)))
    return build, jobs, warnings


def verify_encoding(build: Build, sample: Sample) -> Report:
    """Encode documents again and compare them with their shards; runs in a worker."""
    try:
        found = compare_documents(build, sample)
    except (InputError, SpecError, TokenizerError) as error:
        return Report(warnings=[f"not compared: {with_line(str(error))}"])
    problems: defaultdict[str, list[str]] = defaultdict(list)
    num_gone = num_other = 0
    for kind, document, source_place in found:
        if kind == "gone":
            num_gone += 1
        elif kind == "text" and build.rules.transform:
            num_other += 1
        else:
            ids = "ids or classes" if sample.file.holds_conversations or sample.file.has_masks else "ids"
            what = f"encoded again, its {ids} differ" if kind == "ids" else "its source gives another text"
            path = version_path(document.shard.version, document.shard.entry.name)
            problems[path].append(f"{source_place}, token {document.start}: {what}")
    warnings = []
    if num_gone:
        warnings.append(f"{sample.file.url}: {num_gone} of its rows can no longer be read")
    if num_other:
        warnings.append(
            f"documents.transform {build.rules.transform} gives different texts: {num_other:,} not compared"
        )
    damages = []
    for path, differences in sorted(problems.items()):
        named = [with_line(difference) for difference in differences[:_MAX_NAMED]]
        if len(differences) > _MAX_NAMED:
            named.append(f"and {len(differences) - _MAX_NAMED} more")
        damages.append(Damage(path, "; ".join(named)))
    num_documents = len(sample.documents) - num_gone - num_other
    return Report(num_documents=num_documents, damages=damages, warnings=warnings)


# fields of a version's `chat` that a spec does not have
_OF_BUILD = ("template", "special_tokens", "rules")


def checked_spec(spec: BuildSpec, manifest: Manifest, name: str) -> BuildSpec:
    """Return a spec with the layouts that its version has recognized.

    Raises SpecError if the version was built from another spec; excluded contents and templates are not compared.
    """
    sources: Any = manifest.spec["sources"]
    layouts = {source["name"]: source.get("layout") for source in sources}
    spec = spec.with_layouts({name: layouts.get(name) for name in spec.without_layout()})
    mine = _comparable(spec.identity())
    built = _comparable(manifest.spec)
    if differing := sorted(key for key in mine.keys() | built.keys() if mine.get(key) != built.get(key)):
        raise SpecError(f"{name}: the version was built from another spec, which differs in {', '.join(differing)}")
    return spec


def _comparable(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec's identity without the hashes of files that it names, and with lists in place of tuples."""
    documents = {key: value for key, value in identity["documents"].items() if key not in ("exclude", "marks")}
    chat = {key: value for key, value in identity.get("chat", {}).items() if key not in _OF_BUILD}
    compared = given_options({**identity, "documents": documents, "chat": chat})
    return json.loads(json.dumps(compared))  # type: ignore[no-any-return]


def recorded_spec(store: Store, manifest: Manifest, inputs: Sequence[InputEntry]) -> BuildSpec:
    """Return the spec in build.json, whose secrets are redacted, with the commits of the Hub that the build read.

    Errors of reading and checking the spec are not translated. Anyone who can write to the store can write that file.
    It may therefore name sources, but no code to run here.
    """
    from tokenloom.spec.build_spec import BuildSpec

    path = version_path(manifest.version, BUILD)
    build = decode_build(store.read(path), store.place(path))
    spec = checked_spec(BuildSpec.model_validate(build.spec), manifest, BUILD)
    if spec.documents.transform:
        raise SpecError("documents.transform is code, which runs only if --spec names it")
    commits: dict[str, str] = {}
    for entry, url in zip(inputs, build.inputs, strict=True):
        if commit := commit_of(url):
            commits[entry.source] = commit
    return _with_commits(spec, commits)


def _with_commits(spec: BuildSpec, commits: Mapping[str, str]) -> BuildSpec:
    """Return a spec whose sources on the Hub, by name, are those of the given commits."""
    sources = []
    for name, source in zip(spec.source_names(), spec.sources, strict=True):
        commit = commits.get(name)
        if commit is None:
            sources.append(source)
        elif source.kind == "huggingface":
            data_files = at_commit(source.data_files, commit) if source.data_files else None  # those of a builder
            sources.append(source.model_copy(update={"revision": commit, "data_files": data_files}))
        else:
            sources.append(source.model_copy(update={"path": at_commit(source.path, commit)}))
    return spec.model_copy(update={"sources": sources})
