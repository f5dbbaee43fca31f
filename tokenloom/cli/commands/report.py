"""`tokenloom report`: write a page with the figures of a version, or the catalogue of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tokenloom.cli.arguments import Argument
from tokenloom.cli.output import Json, Output, Result
from tokenloom.console import print_status
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.versions.published import is_dataset
from tokenloom.storage.versions.references import datasets_in, names_version, parse_reference, resolve
from tokenloom.wording import counted


def run(
    reference: Annotated[str, Argument("REF|STORE")],
    *,
    output: Annotated[Path | None, Argument("FILE")] = None,
    out: Output,
) -> Result:
    """Write the report of a version, or the catalogue of a store: into the store, or into a file.

    Args:
        reference: a version: STORE/DATASET@TAG_OR_VERSION (default: @latest); or a store, for its catalogue
        output: where to write the page (default: reports/VERSION.html in the dataset's folder of the store; for a
            catalogue, index.html in the store)
    """
    folder = _store_of(reference)
    value = _write_report(reference, output) if folder is None else _write_catalogue(reference, folder, output)
    out.line(f"{value.get('report') or value['catalogue']}  {counted(value['bytes'], 'byte')}")
    return Result(value)


def _write_report(reference: str, output: Path | None) -> Json:
    from tokenloom.tasks.report.page import make_report, write_report

    store, manifest = resolve(parse_reference(reference))
    page, path = make_report(store, manifest), str(output)
    if output is None:
        path = write_report(store, manifest.version, page)
        refresh_catalogue(store)
    else:
        output.write_bytes(page)
    version = manifest.version
    return {"reference": f"{store.root}@{version}", "version": version, "report": path, "bytes": len(page)}


def _write_catalogue(root: str, folder: Store, output: Path | None) -> Json:
    from tokenloom.tasks.report.catalogue import render_catalogue, write_catalogue

    if output is None:
        path, num_bytes = write_catalogue(root)
    else:
        path, num_bytes = str(output), output.write_bytes(render_catalogue(root, folder).encode())
    return {"store": str(folder.root), "catalogue": path, "bytes": num_bytes}


def refresh_catalogue(store: Store) -> None:
    """Write the catalogue of a dataset's store again; if that fails, say so on stderr and go on."""
    from tokenloom.tasks.report.catalogue import try_to_write_catalogue

    if problem := try_to_write_catalogue(store):
        print_status(problem)


def _store_of(text: str) -> Store | None:
    """Return the store that `text` names; None if it names a version or a dataset."""
    if names_version(text):
        return None
    folder = open_store(text)
    return folder if not is_dataset(folder) and datasets_in(folder) else None
