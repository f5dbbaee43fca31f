"""The spec that says where the sources of a version are, loaded only if a lookup needs it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tokenloom.storage.formats.manifest import BUILD, Manifest
from tokenloom.storage.stores.remote_errors import is_transient, reason_of
from tokenloom.storage.stores.store import Store
from tokenloom.tasks.planning.recorded_spec import check_spec, recorded_spec

if TYPE_CHECKING:  # importing it takes as long as reading a gigabyte
    from tokenloom.spec.build_spec import BuildSpec


class KnownSpec:
    """The spec of a version: the one that the user gives, else that of build.json.

    Attributes:
        why_unknown: why there is none, once `spec` is None.

    Args:
        store: the dataset's.
        manifest: the version's.
        path: of the user's spec; None for build.json.

    Raises SpecError if the user's spec is wrong, or not that of the version.
    """

    def __init__(self, store: Store, manifest: Manifest, path: str | None) -> None:
        self._store, self._manifest = store, manifest
        self.why_unknown = ""
        self._given: BuildSpec | None = None
        if path is not None:
            from tokenloom.spec.loading import load_spec

            self._given = load_spec(path)
            check_spec(self._given, manifest, "--spec")

    @cached_property
    def spec(self) -> BuildSpec | None:
        """The spec, None if it is not known."""
        if self._given is not None:
            return self._given
        try:
            return recorded_spec(self._store, self._manifest)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if is_transient(error):
                raise
            self.why_unknown = f"{BUILD} does not say where it is ({reason_of(error)})"
            return None
