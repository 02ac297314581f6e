"""The job in which a command runs, and its nodes, by the variables and files that it has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gsched.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNodes:
    """The nodes of a job.

    Attributes:
        here: the node on which this command runs.
        hosts: all nodes, in rank order.
        slots: the node of each slot, as $PBS_NODEFILE has them.
        socket: gnode's socket on this node; empty: the job has one node, or an older gnode.
        key: job and attempt, as gnode knows them.
    """

    here: str
    hosts: tuple[str, ...]
    slots: tuple[str, ...]
    socket: str = ""
    key: str = ""

    def find(self, name: str) -> str:
        """Return the node that a host name means: its own, or one that differs in the domain only.

        Names are compared, not resolved: nodes of gsched need no entry in the DNS.

        Raises:
            UsageError: no node of the job is meant, or more than one.
        """
        if name in {"localhost", "127.0.0.1", "::1"}:
            return self.here
        wanted = name.lower()
        for host in self.hosts:
            if host.lower() == wanted:
                return host
        short = wanted.partition(".")[0]
        alike = [host for host in self.hosts if host.lower().partition(".")[0] == short]
        if len(alike) != 1:
            raise UsageError(
                f"host {name} is no node of this job", hint=f"its nodes: {', '.join(self.hosts)}"
            )
        return alike[0]


def job_nodes(variables: Mapping[str, str], *, command: str) -> JobNodes:
    """Return the nodes of the job in which ``command`` runs.

    Raises:
        UsageError: it does not run in a job, or the job's node file cannot be read.
    """
    path = variables.get("PBS_NODEFILE", "")
    if not variables.get("PBS_JOBID") or not path:
        raise UsageError(f"{command} runs inside a job only", hint="see gsub(1)")
    try:
        with open(path, encoding="utf-8") as stream:
            slots = tuple(stream.read().split())
    except OSError as error:
        raise UsageError(f"cannot read $PBS_NODEFILE {path}: {error.strerror}") from None
    listed = variables.get("GSCHED_NODELIST", "")
    hosts: Sequence[str] = listed.split(",") if listed else tuple(dict.fromkeys(slots))
    here = variables.get("GSCHED_NODE", "") or hosts[0]
    return JobNodes(
        here=here,
        hosts=tuple(hosts),
        slots=slots or (here,),
        socket=variables.get("GSCHED_NODE_SOCKET", ""),
        key=variables.get("GSCHED_ATTEMPT_KEY", ""),
    )
