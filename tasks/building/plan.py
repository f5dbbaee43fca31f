"""Plan a build: list its inputs, name its version, and cut the inputs into partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from tokenloom.chat.conversation import ChatDefinition
from tokenloom.storage.formats.manifest import TokenizerEntry, given_options, version_name
from tokenloom.storage.formats.records import sha256_of
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tag_moves, tags
from tokenloom.storage.versions.published import is_published
from tokenloom.storage.versions.references import dataset_store
from tokenloom.storage.work.fingerprints import FingerprintMemory
from tokenloom.storage.work.records import PartitionRecord, find_partition_records
from tokenloom.storage.work.spill import SPILL_FORMAT
from tokenloom.tasks.building.inputs import InputFile, LeftOut, list_inputs, with_layouts
from tokenloom.tasks.building.marks.files import MarkFiles, MarkRules, list_marks
from tokenloom.tasks.rules import ROW_RULES, RowRules, load_transform
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.memory import bounded
from tokenloom.tasks.sizes import MEMORY
from tokenloom.tasks.sources import PartitionRange, make_reader
from tokenloom.tasks.sources.files import sharing_files
from tokenloom.tasks.sources.reader import naming_source
from tokenloom.tokenizers import ReferenceTokenizer, load_once, pinned_fields
from tokenloom.tokenizers.fast.proofs import REFERENCE, Choice, Proof, choose
from tokenloom.tokenizers.fast.tokenizer import SAMPLE, Overlap

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec.build_spec import BuildSpec

SAMPLE_BYTES = 1_100_000  # both libraries encode at least this much text of a build,
_MIN_SAMPLE_SHARE = 0.001  # and at least this share
MIN_FAST_BYTES = 2_000_000  # the reference would encode half of a smaller text as the sample


@dataclass(frozen=True)
class Partition(PartitionRange):
    """A part of an input file, at `input_index` of the plan's inputs, and the name of its spills."""

    input_index: int
    spill_name: str
    file: InputFile = field(compare=False, repr=False)

    @property
    def label(self) -> str:
        """The file, and its row groups or bytes."""
        return f"{self.file.path} [{self.start}, {self.end})"


@dataclass(frozen=True, eq=False)
class Build:
    """A build, as each of its steps needs it: where the store is, and all that decides ids and bytes.

    A worker gets it once for all jobs of a step, and caches the tokenizer that it loads by it.
    `tokenizer` is its entry in the manifest, `definition` its part of the spec; `rules` say which rows become
    documents, `chat` renders conversations, None if no source has any. `has_ids` says that a source names ids,
    `has_classes` that tokens have classes: those of conversations, or of imported masks. `limit` is that of a try-out.
    `proof` is that of the fast encoder, None if the reference encodes; `overlap` says which texts the reference encodes
    too. `tokenizer_files` are those of a published version, None for those that the definition names. `marks` decide
    how many copies of a document the version has. `memory` is how many bytes of documents a worker may hold.
    """

    store: Store
    dataset: str
    version: str
    tokenizer: TokenizerEntry
    definition: dict[str, Any]
    rules: RowRules
    proof: Proof | None = None
    overlap: Overlap = SAMPLE
    tokenizer_files: dict[str, bytes] | None = None
    chat: ChatDefinition | None = None
    has_ids: bool = False
    has_classes: bool = False
    limit: int | None = None
    marks: MarkRules | None = None
    memory: int = MEMORY

    def chat_of(self, file: InputFile) -> ChatDefinition | None:
        """Return the template and tokens for the rows of a file, None if they are texts."""
        return self.chat if file.holds_conversations else None


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """A build with its spec and inputs, for the process that orders its steps.

    `spec` names the tokenizer as pinned_fields pins it, and the layouts of conversations; `identity` is its identity
    part. `reference` is the tokenizer itself, `eot_of_config` whether only a tokenizer_config.json names its
    end-of-text token. `tag` is the tag that the build moves: `latest`,
    or another one for a try-out; `seen_tag_number` is the number of its newest entry when the plan was made. `left_out`
    counts the files that each pattern of a source's `leave_out` matches. with_partitions adds the rest: `cached` names
    the spills that an earlier build left, `choice` is the encoder of the others. `kept` is what count_kept returns, for
    `tokenloom plan` alone.
    """

    build: Build
    spec: BuildSpec
    identity: dict[str, Any]
    published: bool
    tag: str
    seen_tag_number: int
    reference: ReferenceTokenizer
    eot_of_config: bool
    inputs: list[InputFile]
    left_out: LeftOut
    partitions: list[Partition] = field(default_factory=list)
    cached: frozenset[str] = frozenset()
    choice: Choice = field(default_factory=Choice)
    kept: tuple[int, int] | None = None

    @property
    def limits(self) -> dict[str, float]:
        """The limits of the gates that the version must pass; none for a try-out, which never becomes latest."""
        return self.spec.checks.limits() if self.build.limit is None else {}

    @property
    def distinct(self) -> list[Partition]:
        """The partitions without copies of others: each spill name once."""
        first = {partition.spill_name: partition for partition in reversed(self.partitions)}
        return [partition for partition in self.partitions if first[partition.spill_name] is partition]

    @property
    def missing(self) -> list[Partition]:
        """The partitions to encode: those without spills, each spill name once."""
        return [partition for partition in self.distinct if partition.spill_name not in self.cached]


def plan_build(spec: BuildSpec, marks: MarkRules | None) -> BuildPlan:
    """Plan a build, without its partitions. Writes nothing but remembered fingerprints.

    Args:
        spec: with absolute paths (BuildSpec.resolve).
        marks: what its marks and exclusions decide, see listed_marks and rules_of; None if it has none.

    Raises:
        InputError: no file matches, a folder matches, a file of marks or excluded contents can't be read, a dataset of
            the hub can't be reached, or the layout of conversations is not clear.
        SpecError: the transform can't be imported, or a chat template can't be read.
        TokenizerError: the tokenizer can't be fetched or loaded.
        StoreError: the store can't be read or written.
    """
    if spec.documents.transform:
        load_transform(spec.documents.transform.function)
    store = dataset_store(spec.store, spec.dataset)
    if pinned := pinned_fields(spec.tokenizer.model_dump()):
        spec = spec.model_copy(update={"tokenizer": spec.tokenizer.pinned(pinned)})
    definition = spec.tokenizer.model_dump()
    chat = None
    if spec.has_conversations:
        from tokenloom.tasks.building.chat import chat_definition  # late: a plan of texts needs no Jinja

        chat = chat_definition(spec, definition)
    tokenizer = load_once(definition)
    inputs, left_out = list_inputs(spec, store)
    if spec.has_conversations:
        spec, inputs = with_layouts(spec, inputs)
    identities = [(file.source, file.path, file.fingerprint) for file in inputs]
    identity = _identity(spec, chat, marks)
    version = version_name(identity, identities, tokenizer.fingerprint)
    tag = tags.LATEST if spec.limit is None else tags.TRYOUT
    build = Build(
        store=store,
        dataset=spec.dataset,
        version=version,
        tokenizer=TokenizerEntry(
            tokenizer.kind, tokenizer.name, tokenizer.fingerprint, tokenizer.vocab_size, tokenizer.eot_id
        ),
        definition=definition,
        rules=row_rules(spec),
        chat=chat,
        has_ids=any(file.options.get("id") for file in inputs),
        has_classes=chat is not None or any(file.has_masks for file in inputs),
        limit=spec.limit,
        marks=marks,
        memory=spec.runner.memory,
    )
    return BuildPlan(
        build=build,
        spec=spec,
        identity=identity,
        published=is_published(store, version),
        tag=tag,
        seen_tag_number=tag_moves.newest_number(store, tag),
        reference=tokenizer,
        eot_of_config="eot" in pinned,
        inputs=inputs,
        left_out=left_out,
    )


def row_rules(spec: BuildSpec) -> RowRules:
    """Return the rules and keys of a build that every partition shares."""
    same = spec.documents.model_dump(include=ROW_RULES)
    transform = spec.documents.transform.function if spec.documents.transform else None
    return RowRules(**same, transform=transform, seed=spec.seed, shares=spec.split_shares())


def listed_marks(spec: BuildSpec) -> list[MarkFiles]:
    """Return the marks of a spec, see list_marks; writes nothing but remembered fingerprints."""
    memory = FingerprintMemory(dataset_store(spec.store, spec.dataset))
    marks = list_marks(spec, memory)
    memory.save()
    return marks


def _identity(spec: BuildSpec, chat: ChatDefinition | None, marks: MarkRules | None) -> dict[str, Any]:
    """Return the identity part of the spec; files that the spec names enter by their contents."""
    identity = spec.identity()
    if marks is not None:
        identity["documents"] |= marks.identity()
    if chat is not None:
        identity["chat"] = chat.json()
    return identity


def cut_file(file: InputFile) -> list[PartitionRange]:
    """Return the partitions of a file; runs in a worker, because a damaged file may crash its native reader.

    Raises InputError if it is damaged or lacks the text column.
    """
    progress.report(progress.Working(f"cutting {file.url} into partitions"))
    with naming_source(file.source), sharing_files(), bounded(file.options["max_bytes"], file.url):
        ranges = make_reader(file.options).partitions(file.url)
    progress.report(progress.Advanced(done=1))
    return ranges


def with_partitions(plan: BuildPlan, cuts: list[list[PartitionRange]]) -> BuildPlan:
    """Return the plan with its partitions, from the results of cut_file for all inputs."""
    build = plan.build
    partitions = []
    for index, (file, parts) in enumerate(zip(plan.inputs, cuts, strict=True)):
        named_by = plan.spec, build.tokenizer.fingerprint, file
        names = [spill_name(*named_by, part, build.chat_of(file)) for part in parts]
        partitions += [
            Partition(**vars(part), input_index=index, spill_name=name, file=file)
            for part, name in zip(parts, names, strict=True)
        ]
    found = find_partition_records(build.store, (part.spill_name for part in partitions))
    cached = frozenset(name for name, record in found.items() if may_reuse(record, build.definition))
    plan = replace(plan, partitions=partitions, cached=cached)
    num_bytes = sum(part.num_bytes for part in plan.missing)
    if num_bytes < MIN_FAST_BYTES:
        choice = Choice(reason=f"less than {MIN_FAST_BYTES // 10**6} MB of text is to be encoded")
    else:
        choice = choose(plan.reference, build.definition)
    overlap = Overlap(min(1.0, max(_MIN_SAMPLE_SHARE, SAMPLE_BYTES / max(1, num_bytes))))
    return replace(plan, choice=choice, build=replace(build, proof=choice.proof, overlap=overlap))


def may_reuse(record: PartitionRecord, definition: Mapping[str, Any]) -> bool:
    """Return whether a build may use the spills of a record: with `backend: reference` none of a fast encoder."""
    return record.encoder is None or definition.get("backend") != REFERENCE


def with_tryout_partitions(plan: BuildPlan, spills: Sequence[Sequence[tuple[str, bool]]]) -> BuildPlan:
    """Return the plan of a try-out with only the partitions that were read, under the names of their spills.

    Args:
        plan: with all partitions.
        spills: results of tokenize_tryout, by source.
    """
    used: list[Partition] = []
    for partitions, named in zip(partitions_by_source(plan), spills, strict=True):
        used += [replace(part, spill_name=name) for part, (name, _) in zip(partitions, named, strict=False)]
    cached = frozenset(name for named in spills for name, is_cached in named if is_cached)
    return replace(plan, partitions=used, cached=cached)


def partitions_by_source(plan: BuildPlan) -> list[list[Partition]]:
    """Return the partitions of each source that has any, in order."""
    by_source: dict[str, list[Partition]] = {}
    for part in plan.partitions:
        by_source.setdefault(part.file.source, []).append(part)
    return list(by_source.values())


def spill_name(
    spec: BuildSpec,
    tokenizer_fingerprint: str,
    file: InputFile,
    part: PartitionRange,
    chat: ChatDefinition | None = None,
) -> str:
    """Return a hash of everything that determines the bytes of a partition's spills; see given_options."""
    source = spec.sources[spec.source_names().index(file.source)]
    paths = {field for field, _ in source.paths()}  # the fingerprint represents the files
    decides = {
        "suffix": PurePosixPath(file.path).suffix,  # determines how it is decompressed
        "documents": {key: value for key, value in spec.documents.identity().items() if key != "exclude"},
        "fingerprint": file.fingerprint,
        "options": given_options({name: value for name, value in file.options.items() if name not in paths}),
        "range": [part.start, part.end],
        "seed": spec.seed,
        "spill_format": SPILL_FORMAT,
        "splits": [list(item) for item in spec.split_shares()],
        "tokenizer": tokenizer_fingerprint,
    }
    if chat is not None:
        decides["chat"] = chat.json()
    return sha256_of(decides)[:32]
