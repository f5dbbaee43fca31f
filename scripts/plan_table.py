"""Write what builds of 1 GB to 100 TB cost at an object store into docs/guides/clusters.md, as `plan` counts it.

python scripts/plan_table.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a program sees only its own folder

from tokenloom.tasks.costs import Volume, requests_of  # noqa: E402
from tokenloom.tasks.sizes import MAX_SPILLS  # noqa: E402
from tokenloom.wording import shown_bytes  # noqa: E402

PAGE = ROOT / "docs" / "guides" / "clusters.md"
_MARKS = "<!-- made by scripts/plan_table.py -->", "<!-- end -->"
_SIZES = {"1 GB": 10**9, "100 GB": 10**11, "1 TB": 10**12, "10 TB": 10**13, "100 TB": 10**14}
_HEADER = ["text", "`partition_bytes`", "spills", "runs", "shards", "pieces", "requests", "a read", "moved", "dollars"]
_DOLLARS = 0.40e-6, 5.00e-6  # a read, a write


def volume_of_text(text_bytes: int, partition_bytes: int) -> Volume:
    """Return a build of English text from large files: 4 KB a document, 4.5 bytes a token of two bytes."""
    spills = -(-text_bytes // partition_bytes)
    inputs = -(-text_bytes // (2 * 10**9)), text_bytes, True, spills, spills
    made = text_bytes // 4000, text_bytes * 2 // 9, (2,), False, (0.98, 0.01, 0.01)
    return Volume(*inputs, *made, shard_tokens=100_000_000, num_workers=32)


def table() -> str:
    """Return the table in Markdown."""
    rows = [_HEADER, ["---", *["--:"] * (len(_HEADER) - 1)]]
    for name, text_bytes in _SIZES.items():
        for partition_bytes in (64_000_000, 2_000_000_000):
            rows.append([name, f"{partition_bytes // 10**6:,} MB", *_row(volume_of_text(text_bytes, partition_bytes))])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(of: Volume) -> list[str]:
    costs, shapes = requests_of(of), [of.shape(share) for share in of.splits]
    reads, writes, read, written = (sum(cost[i] for cost in costs.values()) for i in range(4))
    pieces = sum(pieces + parts * of.num_runs for _, pieces, parts in shapes)
    counts = [f"{n:,}" for n in (of.num_spills, of.num_runs, sum(shards for shards, *_ in shapes), pieces)]
    counts[0] += ", refused without `--anyway`" * (of.num_spills > MAX_SPILLS)
    dollars, two_digits = reads * _DOLLARS[0] + writes * _DOLLARS[1], float(f"{reads + writes:.2g}")
    return [*counts, f"{two_digits:,.0f}", shown_bytes(read / reads), shown_bytes(read + written), f"{dollars:,.2f}"]


def with_table(page: str) -> str:
    """Return the page with the table as it is now."""
    begin, end = _MARKS
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{table()}\n{end}", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
