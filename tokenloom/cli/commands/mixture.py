"""`tokenloom mixture`: the shares of a mixture's members by stage, and what a number of samples reads of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tokenloom.cli.arguments import Argument, count
from tokenloom.cli.loader_arguments import TracedLoader, open_stream
from tokenloom.cli.output import Output, Result
from tokenloom.errors import SpecError
from tokenloom.wording import counted

if TYPE_CHECKING:
    from tokenloom.reader.mixture import Mixture

_MAX_BARS = 11  # members of the chart; the others are one bar


def mixture(
    state: Annotated[str, Argument("FILE")],
    *,
    store: Annotated[Sequence[str], Argument("[MEMBER=]STORE")] = (),
    samples: Annotated[int | None, Argument("N", count)] = None,
    svg: Annotated[str | None, Argument("FILE")] = None,
    out: Output,
) -> Result:
    """Show what a mixture reads of each of its datasets.

    It reads nothing of them, so it can plan a run, or an amendment of one, before it begins.

    Args:
        state: a file with the JSON of loader.state_dict(), of a new loader or from a checkpoint
        store: the store of the members, or of one of them
        samples: how many samples of the stream (default: those that the state has taken)
        svg: also draw the shares by stage into this file

    Example:
        mixture state.json --store store --samples 1000000
    """
    from tokenloom.reader.mixture import Mixture

    stream, taken = open_stream(None, TracedLoader(state=state, store=store))
    mixed = stream.mixture
    if not isinstance(mixed, Mixture):
        raise SpecError(f"{state}: the state is of a dataset, not of a mixture")
    num_samples = taken if samples is None else samples
    header, *rows = mixed.plan_table(num_samples)
    out.line(f"{counted(num_samples, 'sample')} of {counted(stream.format.seq_len, 'token')}; {taken:,} are taken")
    out.table(header, rows)
    if svg is not None:
        Path(svg).write_text(_chart(mixed), encoding="utf-8")
        out.line(f"shares by stage: {svg}")
    members = {
        plan.name: {"shares": plan.shares, **plan.consumed._asdict(), "first_repeat": plan.first_repeat}
        for plan in mixed.plan(num_samples)
    }
    return Result({"samples": num_samples, "taken": taken, "members": members})


def _chart(mixed: Mixture) -> str:
    """Draw the shares of the members in each stage as stacked bars; the smallest are one bar together."""
    from tokenloom.tasks.report.templates import templates  # Jinja is for the chart alone

    stages = mixed.schedule.stages
    largest = sorted(range(len(mixed.datasets)), key=lambda i: -max(stage.shares[i] for stage in stages))[:_MAX_BARS]
    names = [*mixed.datasets]
    shown = [(names[i], [stage.shares[i] for stage in stages]) for i in sorted(largest)]
    if len(names) > len(shown):
        rest = [1 - sum(shares) for shares in zip(*(shares for _, shares in shown), strict=True)]
        shown.append((f"{len(names) - len(shown)} others", rest))
    return templates().get_template("shares.svg").render(members=shown, starts=[stage.start for stage in stages])
