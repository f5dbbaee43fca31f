"""Measure what Prefect costs a build, and whether its server and worker can handle many builds (Linux).

    python benchmarks/orchestration.py builds [--builds 50] [--at-once 1] [--output FILE.json]
    python benchmarks/orchestration.py partitions [--partitions 10000] [--rounds 3] [--output FILE.json]

`builds`: small builds of one dataset each, triggered through the API of a real `tokenloom up`, `--at-once` of them in
parallel (the deployment's limit is raised accordingly). The memory of worker and server is read after each turn.

`partitions`: one build of many files with a few rows each, alternately with `--direct` and through the flow against a
running server. A flow also has a fixed cost: the import of Prefect, and artifacts.
A build of one file, run both ways, measures this cost. `orchestration` is what the flow adds without it, `all that the
flow adds` is with it. Processor time covers the process and its workers; the server's time counts as the flow's.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from figures import Figure, print_table, write_json
from many_builds import measure_builds
from many_partitions import measure_partitions


def measure(arguments: argparse.Namespace, folder: Path) -> list[Figure]:
    """Run the measurement that the command line asks for."""
    if arguments.what == "builds":
        return measure_builds(folder, arguments.builds, arguments.at_once)
    return measure_partitions(folder, arguments.partitions, arguments.rounds, arguments.workers)


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure what Prefect costs a build.")
    parser.add_argument("what", choices=["builds", "partitions"])
    parser.add_argument("--builds", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=1, help="builds at a time")
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", help="where to work (default: the system's temporary folder)")
    parser.add_argument("--output", help="a JSON file to write")
    arguments = parser.parse_args()
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        figures = measure(arguments, Path(name))
    loads.append(os.getloadavg()[0])
    figures.append(Figure("load of the machine, before and after", "", loads))
    print_table(figures)
    if arguments.output:
        write_json(arguments.output, figures, **{k: v for k, v in vars(arguments).items() if k != "output"})


if __name__ == "__main__":
    main()
