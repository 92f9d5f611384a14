"""A real Slurm of one node, in a scratch directory on free ports: munged, slurmctld and slurmd as root in a container.

Two partitions: jobs in `high` preempt jobs in `main`, which are queued again. No accounting, as on many small clusters.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue")
CONF = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={d_port}
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory={memory}
PartitionName=main Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=high Nodes={host} PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str | None:
    """Why a cluster cannot be started here, or None."""
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    if absent:
        return f"{', '.join(absent)} not installed; on Debian and Ubuntu: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "Slurm's daemons are started as root"


@dataclass
class Cluster:
    """A running cluster.

    Attributes:
        directory: configuration, state and logs.
        env: environment in which Slurm's commands, and the jobs they start, find it.
    """

    directory: Path
    env: dict[str, str]
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def call(self, *command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
        """Return the output of a command. Raise AssertionError with the output if it fails."""
        done = subprocess.run(
            list(map(str, command)),
            env=self.env | (env or {}),
            cwd=cwd or self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}"
        return done.stdout.strip()

    def submit(self, *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
        """Return the id of the job that sbatch submitted."""
        return self.call("sbatch", "--parsable", *arguments, cwd=cwd, env=env)

    def job(self, job: str) -> dict[str, str]:
        """Return the fields that scontrol prints for a job."""
        shown = self.call("scontrol", "show", "job", "--oneliner", job)
        return dict(item.split("=", 1) for item in shown.split() if "=" in item)

    def states(self) -> dict[str, str]:
        """Return job or array element → state, of all jobs, finished ones as well."""
        rows = self.call("squeue", "--noheader", "--array", "--states=all", "--format=%i %T").splitlines()
        return dict(row.split() for row in rows)

    def wait(self, job: str, *states: str, seconds: float = 90) -> str:
        """Wait until a job is in one of the states; returns it."""
        self.until(lambda: self.job(job)["JobState"] in states, f"job {job} to be {' or '.join(states)}", seconds)
        return self.job(job)["JobState"]

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
        """Wait for a condition; AssertionError with the queue and the ends of logs when it does not come."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                logs = "".join(f"\n{path.name}:\n{path.read_text()[-800:]}" for path in self.directory.glob("*.log"))
                raise AssertionError(f"waited {seconds} s for {what}\n{self.states()}{logs}")
            time.sleep(0.1)

    def processes(self) -> dict[int, str]:
        """Processes of jobs on this cluster, by pid: those with its configuration in their environment."""
        mark, found = f"SLURM_CONF={self.directory}/slurm.conf".encode(), {}
        for entry in Path("/proc").iterdir():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else ()
                if mark in variables and any(name.startswith(b"SLURM_JOB_ID=") for name in variables):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # exited in the meantime
                continue
        return found


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster that is idle when the block starts, and of which nothing is left when it ends."""
    directory = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: a socket's path holds 107 characters
    directory.chmod(0o755)
    generated = Cluster(directory, {**os.environ, "SLURM_CONF": f"{directory}/slurm.conf"})
    try:
        _start(generated)
        yield generated
    finally:
        _stop(generated)
        shutil.rmtree(directory, ignore_errors=True)


def _start(made: Cluster) -> None:
    directory, host = made.directory, socket.gethostname().partition(".")[0]
    for name in ("munge", "state", "spool"):
        (directory / name).mkdir()
    key = directory / "munge" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    munge = pwd.getpwnam("munge")
    for path in (directory / "munge", key):
        os.chown(path, munge.pw_uid, munge.pw_gid)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    ports = dict(zip(("ctld_port", "d_port"), _free_ports(2), strict=True))
    (directory / "slurm.conf").write_text(CONF.format(directory=directory, host=host, memory=memory, **ports))
    below = [f"--{name}={directory}/munge/{name}" for name in ("socket", "pid-file", "seed-file", "log-file")]
    _daemon(made, "munged", "--foreground", "--force", f"--key-file={key}", *below, user="munge")
    made.until((directory / "munge" / "socket").exists, "munged", 10)
    for name in ("slurmctld", "slurmd"):
        _daemon(made, name, "-D", "-f", directory / "slurm.conf")
    made.until(lambda: _answers(made), "the node to be idle", 30)


def _daemon(made: Cluster, name: str, *arguments: str | Path, user: str | None = None) -> None:
    """Start a daemon that ends with this process, however that ends."""
    program = shutil.which(name) or name
    with (made.directory / f"{name}.log").open("wb") as log:
        made.daemons.append(
            subprocess.Popen(
                [program, *map(str, arguments)],
                user=user,
                stdout=log,
                stderr=log,
                cwd=made.directory,
                start_new_session=True,
                preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM),  # PR_SET_PDEATHSIG
            )
        )


def _answers(made: Cluster) -> bool:
    finished = [daemon.args for daemon in made.daemons if daemon.poll() is not None]
    assert not finished, f"{finished} ended: {[path.read_text()[-2000:] for path in made.directory.glob('*.log')]}"
    shown = subprocess.run(["sinfo", "-h", "-o", "%T"], env=made.env, capture_output=True, text=True)
    return set(shown.stdout.split()) == {"idle"}


def _stop(made: Cluster) -> None:
    """End all jobs, then the daemons, then whatever is left of a job."""
    if len(made.daemons) == 3:
        subprocess.run(["scancel", "--user=root"], env=made.env, capture_output=True, timeout=30)
        end = time.monotonic() + 10
        while made.processes() and time.monotonic() < end:
            time.sleep(0.1)
    for daemon in reversed(made.daemons):
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    for pid in made.processes():
        os.kill(pid, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
