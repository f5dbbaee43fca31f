"""A verification without a Prefect server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tokenloom.flows.direct_steps import run_each_directly, run_one_directly
from tokenloom.flows.verify_steps import run_verification
from tokenloom.tasks.running.workers import WorkerPool

if TYPE_CHECKING:  # pydantic takes as long to import as a second of reading is worth
    from tokenloom.spec.build_spec import BuildSpec


def verify_directly(reference: str, deep: bool, spec: BuildSpec | None, num_workers: int) -> dict[str, Any]:
    """Verify a version in this process and its children; see run_verification for arguments and errors."""
    with WorkerPool(num_workers) as pool:
        run_each = partial(run_each_directly, pool)
        return dict(run_verification(reference, deep, spec, num_workers, run_one_directly, run_each))
