"""A Slurm cluster of one machine: munged, slurmctld and slurmd on free ports, without systemd and cgroups."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.servers.processes import wait_until

# cred_expire: as long does a job wait that was queued again, instead of two minutes; the least that Slurm accepts.
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
KillWait=5
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")


def programs() -> dict[str, str] | None:
    """Return the paths of Slurm's programs; None if one is not installed: apt-get install slurmctld slurmd munge."""
    path = f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin"  # a user's PATH may lack these
    found = {name: shutil.which(name, path=path) for name in _PROGRAMS}
    return {name: place for name, place in found.items() if place} if all(found.values()) else None


@contextmanager
def slurm_cluster(folder: Path, cpus: int) -> Iterator[dict[str, str]]:
    """Run a cluster; yield the environment variables with which Slurm's commands use it.

    Args:
        folder: of its files; its path is short enough for a socket.
        cpus: how many it says its only node has.
    """
    installed = programs()
    assert installed
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    _write_configuration(folder, cpus)
    munged = [installed["munged"], "--foreground", "--force", f"--key-file={folder}/munge.key"]
    munged += [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("socket", "pid-file", "seed-file")]
    with ExitStack() as stack:
        stack.enter_context(_running(munged, folder, variables))
        wait_until((folder / "munge.socket").exists, 30, interval=0.05)
        stack.enter_context(_running([installed["slurmctld"], "-D"], folder, variables))
        stack.enter_context(_running([installed["slurmd"], "-D", "-N", "node"], folder, variables))
        wait_until(lambda: _asked("sinfo --noheader --format=%t", variables) == "idle", 60, interval=0.2)
        stack.callback(_cancel_all, variables)
        yield variables


def _write_configuration(folder: Path, cpus: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"ctld_port": one.getsockname()[1], "slurmd_port": other.getsockname()[1]}
    names = {"host": socket.gethostname().partition(".")[0], "user": getpass.getuser()}
    (folder / "slurm.conf").write_text(_CONF.format(folder=folder, cpus=cpus, **ports, **names), encoding="utf-8")
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    for name in ("state", "spool"):
        (folder / name).mkdir()


@contextmanager
def _running(command: list[str], folder: Path, variables: dict[str, str]) -> Iterator[None]:
    """Run a daemon while the block runs; its log is in the folder."""
    with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=os.environ | variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def _cancel_all(variables: dict[str, str]) -> None:
    """End what still runs, which would outlive slurmd."""
    _asked(f"scancel --user={getpass.getuser()}", variables)
    wait_until(lambda: not _asked("squeue --noheader", variables), 60, interval=0.1)


def _asked(command: str, variables: dict[str, str]) -> str:
    """Return what a command of Slurm prints; nothing while nobody answers."""
    environment = os.environ | variables
    return subprocess.run(command.split(), env=environment, capture_output=True, text=True, check=False).stdout.strip()
