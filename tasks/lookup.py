"""Find the documents of a content, a text, a conversation or a source row in a version, or why there are none.

Where duplicates are removed, a content is found by its key. Otherwise all tables of its split are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.chat.conversation import canonical, version_chat
from tokenloom.chat.layouts import normalized, recognized
from tokenloom.errors import BadConversation, InputError, SpecError, message_of
from tokenloom.storage.formats.document_table import DocumentColumns, Origin
from tokenloom.storage.formats.keys import content_digits, digests_of, words_of
from tokenloom.storage.formats.manifest import BUILD, QUARANTINE, InputEntry, ShardEntry
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.storage.stores.remote_errors import is_transient, reason_of
from tokenloom.storage.versions.document_tables import FoundDocument, VersionTables
from tokenloom.storage.versions.published import read_tokenizer_files, version_path
from tokenloom.tasks.building.check import located, read_rows
from tokenloom.tasks.building.documents import document_encoder
from tokenloom.tasks.building.inputs import InputFile, find_input
from tokenloom.tasks.building.marks.evaluation import explain, rows_in_spills
from tokenloom.tasks.building.marks.files import EXCLUDED
from tokenloom.tasks.quarantine import quarantine_reason
from tokenloom.tasks.rules import CONVERSATION, IDS, TEXT, DocumentForm, form_of, read_list, transformed
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import Rows, make_reader
from tokenloom.tasks.sources.base import REASONS
from tokenloom.tasks.verify_sources import checked_spec, recorded_spec
from tokenloom.tokenizers import Tokenizer, load_job_tokenizer
from tokenloom.tokenizers.plain import IdsTokenizer
from tokenloom.wording import counted, did_you_mean, first_of, near_miss

if TYPE_CHECKING:  # importing it takes as long as reading a gigabyte
    from tokenloom.spec.build_spec import BuildSpec


Status = Literal[  # docs/guides/trace.md says what each means
    "found", "duplicate", "filtered", "excluded", "marked", "quarantined", "not_found"
]
_READERS = 8  # tables read at the same time
_MAX_COMPARED = 2000  # paths among which one that is close is looked for


@dataclass(frozen=True)
class Lookup:
    """The result of a lookup: its status, the reason in words, the content, None if unknown, and the documents."""

    status: Status
    reason: str
    content: str | None
    documents: list[FoundDocument] = field(default_factory=list)


@dataclass(frozen=True)
class SourceRow:
    """A row of a source: its text after the transform, None if that or a null leaves it out, and its form.

    Tokens have their ids as bytes in place of a text. `exists` is False for a number that no row has, `passes_filter`
    for a row that the filter of its source leaves out.
    """

    text: str | bytes | None
    exists: bool = True
    passes_filter: bool = True
    id: str | None = None
    form: DocumentForm = TEXT


class Lookups:
    """Looks up documents of a version.

    Args:
        tables: those of the version.
        spec: the path of the user's spec, with its places and its transform; None for the spec in build.json.

    Raises SpecError if the user's spec is wrong, or not that of the version.
    """

    def __init__(self, tables: VersionTables, spec: str | None) -> None:
        self._tables = tables
        self._why_unknown = ""  # why there is no spec
        self._given: BuildSpec | None = None
        if spec is not None:
            from tokenloom.spec.loading import load_spec

            self._given = checked_spec(load_spec(spec), tables.manifest, "--spec")

    @cached_property
    def _spec(self) -> BuildSpec | None:
        """The spec, None if it is not known; read when a lookup needs it."""
        if self._given is not None:
            return self._given
        try:
            tables = self._tables
            return recorded_spec(tables.store, tables.manifest, tables.inputs)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if is_transient(error):
                raise
            self._why_unknown = f"{BUILD} does not say where it is ({reason_of(error)})"
            return None

    def by_content(self, content: str) -> Lookup:
        """Look up the documents of a content, 32 hexadecimal digits."""
        words = words_of(bytes.fromhex(content))
        if self._tables.rules.deduplicate:
            found = self._tables.find(words)
        else:  # all copies, by reading all tables of the split
            step = "reading document tables, because duplicates were kept"
            splits = [self._tables.split_of(words)]
            found = self._scan(lambda columns: (columns.content == words).all(axis=1), splits, step)
        return Lookup("found", "", content, found) if found else self._absent(content)

    def by_text(self, path: str) -> Lookup:
        """Look up the documents with the text of a file: exactly, or without the line end that an editor adds.

        Raises:
            InputError: the file can't be read, or is not UTF-8.
            SpecError: the version has a transform, and there is no spec.
        """
        text = _read(path)
        found = self._by_text(text, path)
        if found.status == "not_found" and text.endswith("\n"):
            return self._by_text(text.removesuffix("\n").removesuffix("\r"), path)
        return found

    def by_messages(self, path: str) -> Lookup:
        """Look up the documents with the conversation in a file of JSON, in any layout, with its `tools`.

        Raises InputError if the file can't be read, or holds no conversation; SpecError as by_text.
        """
        try:
            value = json.loads(_read(path))
            text = canonical(normalized(value, recognized([value])))
        except (BadConversation, RecursionError) as error:
            problem = message_of(error).partition(";")[0]  # its advice is for a source
            raise InputError(f"{path}: {problem}; write one conversation to the file, in any layout") from error
        except ValueError as error:
            raise InputError(f"{path}: not valid JSON ({message_of(error)}); write a conversation as JSON") from error
        return self._by_document(self._transformed(text, path, CONVERSATION), CONVERSATION)

    def by_row(self, source: str | None, path: str, row: int) -> Lookup:
        """Look up the document of a row of an input, or of the row that its text was kept from, or why there is none.

        Args:
            source: the name of its source; None if only one source has the path.
            path: as inputs.json lists it.
            row: as the document table counts them.

        Raises SpecError if no input has the path, or inputs of several sources have it.
        """
        entry = _find_entry(self._tables.inputs, source, path)
        if reason := self._quarantined(entry, row):
            return Lookup("quarantined", reason, None)
        try:
            found = self.read_row(entry, row)
        except InputError as error:
            return self._scan_row(entry, row, str(error))
        if not found.exists:
            return Lookup("not_found", f"{entry.path} has no row {row}", None)
        if not found.passes_filter:
            return Lookup("filtered", f"the filter of the source {entry.source} leaves it out", None)
        return self._by_read_row(entry, row, found)

    def read_row(self, entry: InputEntry, row: int) -> SourceRow:
        """Read a row of an input again.

        Raises InputError if nothing says where the input is, or if it is gone, has changed, or can't be read.
        """
        if (spec := self._spec) is None:
            raise InputError(self._why_unknown)
        file = find_input(spec, self._tables.store, entry.source, entry.path)
        if file is None:
            raise InputError(f"{entry.source}: {entry.path} is gone")
        if file.fingerprint != entry.fingerprint:
            raise InputError(f"{file.url}: it has changed since the build")
        transform = spec.documents.transform.function if spec.documents.transform else None
        for found, _ in read_rows(file, [row], transform):
            own = None if found.ids is None else found.ids[0].as_py()
            return SourceRow(found.texts[0].as_py(), form=form_of(file.options), id=own)
        if file.options.get("filter") and _has_row(file, row):
            return SourceRow(None, passes_filter=False)
        return SourceRow(None, exists=False)

    def _by_text(self, text: str, path: str) -> Lookup:
        if self._tables.manifest.tokenizer.kind == "ids":
            return self._by_document(self._ids_of(text), IDS)
        return self._by_document(self._transformed(text, path, TEXT), TEXT)

    def _by_document(self, text: str | bytes | None, form: DocumentForm) -> Lookup:
        """Look up a text after the transform, None if that leaves it out."""
        if text is None:
            return Lookup("filtered", self._why_filtered(text, form), None)
        content = _content_of(text, form)
        found = self.by_content(content)
        if found.status == "not_found" and (why := self._why_filtered(text, form)):
            return Lookup("filtered", why, content)
        return found

    def _by_read_row(self, entry: InputEntry, row: int, found: SourceRow) -> Lookup:
        """Look up a row whose text is known."""
        if found.text is None:
            return Lookup("filtered", self._why_filtered(None, found.form), None)
        tables = self._tables
        content = _content_of(found.text, found.form)
        words = words_of(bytes.fromhex(content))
        documents = tables.find(words) if tables.rules.deduplicate else tables.find_copy(words, entry.fingerprint, row)
        origin = (entry.source, entry.path, row)
        if exact := [each for each in documents if (each["source"], each["path"], each["row"]) == origin]:
            return Lookup("found", "", content, exact)
        here: Origin = {"source": entry.source, "path": entry.path, "row": row, "content": content, "id": found.id}
        if dropped := self._dropped(here):
            return dropped
        if documents:
            first = documents[0]
            reason = f"its text was kept from {first['source']}: {first['path']}, row {first['row']}"
            return Lookup("duplicate", reason, content, documents)
        if why := self._why_filtered(found.text, found.form):
            return Lookup("filtered", why, content)
        return self._absent(content)

    def _dropped(self, here: Origin) -> Lookup | None:
        """Return which mark drops the document of a row, None if none does."""
        why, marks = self.marks_of(here)
        shown = "".join(f", {name} = {value}" for name, value in marks.items())
        reason = f"its marks leave it out ({why}){shown}: {here['path']}, row {here['row']}"
        return Lookup("marked", reason, here["content"]) if why not in ("", EXCLUDED) else None

    def marks_of(self, document: Origin) -> tuple[str, dict[str, Any]]:
        """Return what drops a document of a row, "" if nothing, and its marks; {} if they are others now."""
        with suppress(InputError):
            if self._spec is not None and self._tables.rules.marks is not None:
                return explain(self._spec, self._tables, document)
        return "", {}

    def _absent(self, content: str) -> Lookup:
        """Tell a content that is excluded from one that is not found."""
        url = self._spec.documents.exclude if self._spec else None
        if self._tables.rules.exclude and url:
            words = words_of(bytes.fromhex(content))
            with suppress(InputError):
                if digests_of(words[np.newaxis])[0] in read_list(url, "content"):
                    return Lookup("excluded", f"documents.exclude lists it now: {url}", content)
        reason = f"no document has the content {content}"
        if self._tables.rules.marks:
            for row in rows_in_spills(self._tables, content):
                if dropped := self._dropped(row):
                    return dropped
            reason += "; its marks may leave it out: give --path and --row"
        return Lookup("not_found", reason, content)

    def _quarantined(self, entry: InputEntry, row: int) -> str:
        manifest = self._tables.manifest
        if QUARANTINE not in manifest.files:
            return ""
        path = version_path(manifest.version, QUARANTINE)
        reason = quarantine_reason(self._tables.store, path, entry.source, entry.path, row)
        return f"{QUARANTINE} lists it as {reason}: {REASONS.get(reason, 'a bad row')}" if reason else ""

    def _why_filtered(self, text: str | bytes | None, form: DocumentForm) -> str:
        """Say which rule of the version, or template, leaves out a text after the transform; "" if none does."""
        rules = self._tables.rules
        if text is None:
            return "documents.transform leaves it out" if rules.transform else "it has no text"
        num_chars = form.num_chars(pa.array([text], form.type))[0].as_py()
        if num_chars < rules.min_chars:
            return f"it has {counted(num_chars, 'character')}, and documents.min_chars is {rules.min_chars:,}"
        if rules.max_chars is not None and num_chars > rules.max_chars:
            return f"it has {counted(num_chars, 'character')}, and documents.max_chars is {rules.max_chars:,}"
        return self._why_not_rendered(str(text)) if form is CONVERSATION else ""

    def _why_not_rendered(self, text: str) -> str:
        """Say why the template makes no document of a conversation; "" if it renders it with a target."""
        chat = version_chat(self._tables.store, self._tables.manifest)
        if chat is None:
            return "the version has no conversations"
        rows = Rows(pa.array([text], pa.large_string()), np.zeros(1, np.uint64))
        encoder = document_encoder(self._tokenizer(), chat)
        rule = self._tables.rules.without_target
        (rows,) = encoder.prepared(iter([rows]), "skip", "keep" if rule == "keep" else "drop", lambda _: "it")
        if rows.bad:
            return str(rows.bad[0])
        return f"nothing of it is learned, and documents.without_target is {rule}" if rows.num_without_target else ""

    def _tokenizer(self) -> Tokenizer:
        manifest = self._tables.manifest
        files = read_tokenizer_files(self._tables.store, manifest)
        return load_job_tokenizer(manifest.tokenizer_definition, manifest.tokenizer.fingerprint, files)

    def _ids_of(self, text: str) -> bytes:
        """Encode a text with the tokenizer that made the ids of a version."""
        tokenizer = self._tokenizer()
        assert isinstance(tokenizer, IdsTokenizer)
        if (decoder := tokenizer.decoder) is None:
            raise SpecError(
                "--text: nothing says which tokenizer made the tokens of the version; give --content, or import them "
                "with tokenizer.decode"
            )
        encoded = decoder.encode(pa.array([text], pa.large_string()), np.dtype("<u4")).tokens
        return encoded[len(decoder.bos_ids) : -1].tobytes()

    def _transformed(self, text: str, path: str, form: DocumentForm) -> str | None:
        """Apply the transform of the version to the text of a file; None if that leaves it out."""
        if not self._tables.rules.transform:
            return text
        if self._spec is None or self._spec.documents.transform is None:
            raise SpecError(
                "the version was built with a documents.transform, which is code: give --spec, so that it runs"
            )
        function = self._spec.documents.transform.function
        texts = transformed(pa.array([text], pa.large_string()), np.zeros(1, np.uint64), function, lambda _: path, form)
        found: str | None = texts[0].as_py()
        return found

    def _scan_row(self, entry: InputEntry, row: int, why: str) -> Lookup:
        """Look for a row that can't be read in the tables of all splits."""
        number = self._tables.inputs.index(entry)
        step = "reading document tables, as the source can't be read"
        splits = self._tables.manifest.splits
        if found := self._scan(lambda columns: (columns.input == number) & (columns.row == row), splits, step):
            return Lookup("found", "", found[0]["content"], found)
        return Lookup(
            "not_found",
            f"no document comes from this row; the source could say why, but can't be read: {why}; "
            "--spec names a spec that says where the sources are now",
            None,
        )

    def _scan(
        self, matches: Callable[[DocumentColumns], NDArray[np.bool_]], splits: Collection[str], step: str
    ) -> list[FoundDocument]:
        """Read all tables of some splits, and list the documents in rows that match; report progress of the step."""
        tables = self._tables
        entries = [entry for name in splits if (split := tables.manifest.splits.get(name)) for entry in split.shards]
        progress.report(progress.StepStarted(step, sum(entry.documents for entry in entries)))

        def of_shard(entry: ShardEntry) -> list[FoundDocument]:
            found: list[FoundDocument] = []
            for columns in tables.open(entry).batches():
                for i in np.flatnonzero(matches(columns)).tolist():
                    found += tables.documents(entry, columns.slice(i, i + 1))
                progress.report(progress.Advanced(num_documents=columns.num_rows, done=columns.num_rows))
            return found

        with ThreadPoolExecutor(_READERS) as readers:
            return [found for each in readers.map(of_shard, entries) for found in each]


def _find_entry(inputs: Sequence[InputEntry], source: str | None, path: str) -> InputEntry:
    """Find the input with a path; raise SpecError if there is none, or several sources have one."""
    of_source = [entry for entry in inputs if source in (None, entry.source)]
    if source is not None and not of_source:
        names = list(dict.fromkeys(entry.source for entry in inputs))
        raise SpecError(f"--source: no source is named {source!r}. {did_you_mean(source, names)}")
    matching = [entry for entry in of_source if entry.path == path]
    if not matching:
        paths = [entry.path for entry in of_source]
        close = near_miss(path.rpartition("/")[2], paths[:_MAX_COMPARED]) or f"Inputs: {first_of(paths, 3)}"
        raise SpecError(f"--path: no input has the path {path!r}, which counts from the root of its source. {close}")
    if len(matching) > 1:
        shared = first_of([entry.source for entry in matching])
        raise SpecError(f"{path}: several sources have this path: {shared}; give one with --source")
    return matching[0]


def _has_row(file: InputFile, row: int) -> bool:
    """Test whether a file has a row, which may have no usable text: a filter leaves out such rows, too."""
    reader = make_reader({**file.options, "filter": None, "on_error": "skip"})
    return any(
        np.isin(row, batch.rows) or any(bad.row <= row < bad.row + bad.num_rows for bad in batch.bad)
        for batch in each_bounded(located(reader, file.url, [row]), file.options["max_bytes"], file.url)
    )


def _content_of(text: str | bytes, form: DocumentForm) -> str:
    """Compute the content of a text, 32 hexadecimal digits."""
    return content_digits(form.contents(pa.array([text], form.type))[0])


def _read(path: str) -> str:
    try:
        return read_regular(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; convert the text to UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}; check the file") from error
