"""The table of all limits and quotas: how much, in which scope, who enforces it, and why.

`gsched.model.limits` and a few modules beside it have the numbers; docs/protocol.md shows this
table, and tests compare each row with its constant or configuration key, with the module that
enforces it, and with the document.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import Struct

from gsched.model import limits


class Scope(StrEnum):
    """In which scope a limit counts."""

    REQUEST = "a request"
    JOB = "a job"
    ATTEMPT = "an attempt on a node"
    USER = "a user"
    ADDRESS = "an address"
    NODE = "a node"
    ALL = "all users"


class Limit(Struct, frozen=True, kw_only=True):
    """One limit.

    Attributes:
        of: the limited thing.
        most: the largest number that is allowed; of a configuration key, its default.
        unit: of that number.
        scope: in which scope it is counted.
        by: the module that enforces it.
        name: of the constant in `gsched.model.limits`, with the module's name where that is
            another one; or of the configuration key, as ``[head] max_queued_per_user``.
        why: the reason for the number.
    """

    of: str
    most: int
    unit: str
    scope: Scope
    by: str
    name: str
    why: str

    @property
    def is_key(self) -> bool:
        """Return whether a site can set it."""
        return self.name.startswith("[")

    @property
    def enforcer(self) -> str:
        """Return the daemon that enforces it, with the module."""
        daemon = "both daemons" if self.by == "gsched.logs" else "head"
        return f"{'node' if self.by.startswith('gnode.') else daemon}: `{self.by}`"

    @property
    def row(self) -> str:
        """Return its row of the document's table."""
        most = f"{self.most:,} {self.unit}"
        if self.is_key:
            most = f"{most} by default (`{self.name}`)"
        return f"| {self.of} | {most} | {self.scope} | {self.enforcer} | {self.why} |"


#: Name, what is limited, unit and reason; of a configuration key, also its default.
_Row: TypeAlias = tuple[str, str, str, str] | tuple[str, str, str, str, int]


def _of(scope: Scope, by: str, *rows: _Row) -> Iterator[Limit]:
    """Yield the limits that a module enforces in a scope."""
    for name, of, unit, why, *default in rows:
        most = default[0] if default else getattr(limits, str(name))
        yield Limit(name=name, of=of, most=most, unit=unit, scope=scope, by=by, why=why)


_PORTS: Final = "gsched.forwarding"
_AS_SHELL: Final = "a browser opens six; it counts as a shell"
LIMITS: Final = (
    *_of(
        Scope.REQUEST,
        "gschedd.http.bodies",
        (
            "MAX_SUBMIT_BYTES",
            "a submission",
            "bytes",
            "a script of full size, escaped as JSON, with its environment; decoded in pieces",
        ),
        (
            "MAX_REQUEST_BYTES",
            "any other request",
            "bytes",
            "10,000 job ids with their server's name; decoding takes 2 ms",
        ),
    ),
    *_of(
        Scope.REQUEST,
        "gschedd.http.decoding",
        (
            "MAX_REQUEST_TEXTS",
            "texts in any other request",
            "count",
            "10,000 job ids, and what is to be done with them; each text is an object to make",
        ),
        (
            "MAX_SUBMIT_TEXTS",
            "texts in a submission beyond 1 MiB",
            "count",
            "it holds one job, with all arguments and variables that a job may have",
        ),
        (
            "MAX_DRY_RUN_JOBS",
            "jobs in a dry run",
            "count",
            "each asks the policy up to some hundred times",
        ),
    ),
    *_of(
        Scope.REQUEST,
        "gschedd.http.commands",
        (
            "MAX_JOBS_PER_REQUEST",
            "jobs or job ids in a request",
            "count",
            "a large sweep; the client splits larger ones",
        ),
        ("MAX_NODES_PER_REQUEST", "nodes in an action on nodes", "count", "every node there is"),
        ("MAX_ID", "job id as written", "characters", "a number and the name of a server"),
        ("MAX_NAMED_NODES", "nodes that a migration names", "count", "each is looked up"),
    ),
    *_of(
        Scope.REQUEST,
        "gschedd.http.queries",
        ("MAX_STORIES", "jobs with all details in an answer", "count", "about 10 MB at most"),
        (
            "MAX_PATTERN_WILDCARDS",
            "wildcards in a pattern of names",
            "count",
            "each further one multiplies the steps of a comparison",
        ),
        ("MAX_HISTORY_ROWS", "past jobs in an answer", "count", "about 30 MB, encoded in slices"),
    ),
    *_of(
        Scope.JOB,
        "gschedd.core.requests.submit",
        ("MAX_SCRIPT_BYTES", "script", "bytes", "twice Slurm's max_script_size"),
        ("MAX_ENVIRONMENT_BYTES", "environment, names and values", "bytes", "half of ARG_MAX"),
        ("MAX_VARIABLES", "variables in the environment", "count", "a login shell has some 100"),
        ("MAX_ARGUMENTS", "arguments", "count", "xargs passes about as many"),
        ("MAX_ARGUMENT_BYTES", "arguments together", "bytes", "half of ARG_MAX"),
        ("MAX_RATES", "rates of a training", "count", "one for each number of GPUs"),
        ("MAX_LINES_BYTES", "lines of an array's elements, together", "bytes", "as a script"),
        ("MAX_LINE_BYTES", "line of an element", "bytes", "half of a variable's limit in Linux"),
        (
            "[head] max_array_elements",
            "elements of an array",
            "count",
            "each element that starts becomes a job of its own",
            100_000,
        ),
    ),
    *_of(
        Scope.JOB,
        "gschedd.http.decoding",
        (
            "MAX_FIELD_BYTES",
            "resource list, holds or training, as JSON",
            "bytes",
            "escaped; checked in jobs of more than 64 KiB before they are decoded",
        ),
    ),
    *_of(
        Scope.JOB,
        "gschedd.core.requests.interactive",
        (
            "[limits] max_detach_timeout_s",
            "detach timeout of an interactive job here",
            "seconds",
            "0: it may be none",
            0,
        ),
    ),
    *_of(
        Scope.JOB,
        "gsched.model.limits",
        ("MAX_PATH", "path", "characters", "PATH_MAX of Linux"),
        (
            "MAX_WORD",
            "name, account, queue, kind, client key, node or feature",
            "characters",
            "NAME_MAX of Linux: names become names of files",
        ),
        ("MAX_ARRAY_TEXT", "list of an array's indices", "characters", "1,000 ranges"),
    ),
    *_of(
        Scope.REQUEST,
        "gsched.model.limits",
        (
            "MAX_MESSAGE",
            "message, reason, or any other text",
            "characters",
            "it is kept once for each job that an action names",
        ),
    ),
    *_of(
        Scope.JOB,
        "gsched.model.mail",
        ("MAX_RECIPIENTS", "recipients of a job's mail", "count", "a mailing list holds more"),
        ("MAX_RECIPIENT", "recipient of mail", "characters", "the longest address in RFC 5321"),
    ),
    *_of(
        Scope.JOB,
        "gschedd.core.requests.containers",
        ("MAX_MOUNTS", "mounts of a container", "count", "each is a word of a command line"),
    ),
    *_of(
        Scope.JOB,
        "gsched.model.arrays",
        (
            "MAX_ARRAY_SPANS",
            "ranges of an array's indices",
            "count",
            "also the ranges that remain after single elements are deleted or held",
        ),
    ),
    *_of(
        Scope.JOB,
        "gschedd.core.requests.checkpointing",
        (
            "MAX_LEASE_S",
            "lease",
            "seconds",
            f"a week; at least {limits.MIN_LEASE_S} s: a lost connection is noticed after 15 s",
        ),
        (
            "MAX_CHECKPOINT_INTERVAL_S",
            "interval of checkpoints",
            "seconds",
            "a year: no job lasts longer without one",
        ),
    ),
    *_of(
        Scope.JOB,
        "gschedd.core.requests.interactive",
        (
            "MAX_DETACH_TIMEOUT_S",
            "detach timeout of an interactive job",
            "seconds",
            "30 days; a job that is to wait longer states none",
        ),
    ),
    *_of(
        Scope.JOB,
        "gsched.model.request",
        ("MAX_RESOURCE_TEXTS", "texts of a resource list", "count", "one for each -l"),
        (
            "MAX_RESOURCE_TEXT",
            "resource list",
            "characters",
            "256 host names of 63 characters; reading it takes about 2 ms",
        ),
        (
            "MAX_RESOURCE_TERMS",
            "terms of a resource list",
            "count",
            "consumable resources of a site, one by one",
        ),
        (
            "MAX_RESOURCE_TERM",
            "term of a resource list without its value",
            "characters",
            "an unknown name is compared with all known ones",
        ),
        (
            "MAX_CHUNKS",
            "chunks of nodes= or select=",
            "count",
            "each is placed by itself, in every scheduling cycle; equal ones are written as N:...",
        ),
        ("MAX_CHUNK_WORDS", "words of a chunk", "count", "each feature is looked for on a node"),
        ("MAX_PLACES", "places of a request", "count", "more than any cluster has nodes"),
    ),
    *_of(
        Scope.USER,
        "gschedd.core.requests.submit",
        (
            "MAX_USER_ARGUMENT_BYTES",
            "arguments of unfinished jobs",
            "bytes",
            "with about the overhead of Python; they stay in memory",
        ),
        (
            "[head] max_queued_per_user",
            "unfinished jobs",
            "count",
            "a client that repeats a submission without end fills no memory",
            1_000_000,
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.http.bodies",
        (
            "MAX_USER_BODY_BYTES",
            "requests in flight",
            "bytes",
            "four of the largest requests; counted as they arrive",
        ),
    ),
    *_of(
        Scope.ALL,
        "gschedd.http.bodies",
        ("MAX_BODY_BYTES", "requests in flight", "bytes", "four users at their limit"),
    ),
    *_of(
        Scope.ALL,
        "gschedd.engine.loop",
        (
            "MAX_INBOX",
            "requests that wait for the head",
            "inputs",
            "more are refused: overload is an error, not a hang",
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.daemon.listening",
        (
            "MAX_USER_CONNECTIONS",
            "connections to the head",
            "descriptors",
            "a `gwait` for each of a thousand jobs; at most a quarter of all users'",
        ),
    ),
    *_of(
        Scope.ALL,
        "gschedd.daemon.listening",
        (
            "MAX_CONNECTIONS",
            "connections to the head",
            "descriptors",
            "at most three quarters of the descriptors; a sixteenth is for operators",
        ),
        (
            "MAX_UNPROVEN",
            "connections to the node port that have proven nothing",
            "descriptors",
            "they have 5 s to prove that they are nodes",
        ),
    ),
    *_of(
        Scope.ADDRESS,
        "gschedd.daemon.listening",
        (
            "MAX_UNPROVEN_OF_ADDRESS",
            "connections to the node port that have proven nothing",
            "descriptors",
            "a further one takes the place of the oldest",
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.http.sessions",
        (
            "MAX_USER_SESSIONS",
            "terminal sessions",
            "sessions",
            "each has two connections and two buffers",
        ),
    ),
    *_of(
        Scope.ALL,
        "gschedd.http.sessions",
        ("MAX_SESSIONS", "terminal sessions", "sessions", "16 users at their limit"),
    ),
    *_of(
        Scope.NODE,
        "gnode.daemon.sessions",
        ("MAX_SESSIONS_OF_NODE", "terminal sessions", "sessions", "eight users at their limit"),
    ),
    *_of(
        Scope.USER,
        "gschedd.notify.ledger",
        (
            "MAX_USER_NOTICES",
            "notices that wait for a way",
            "notices",
            "more are dropped; users take turns",
        ),
        (
            "MAX_HOST_NOTICES",
            "notices that wait for a host of a user's URLs",
            "notices",
            "more are dropped",
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.store.code",
        (
            "MAX_USER_UPLOADS",
            "uploads of code snapshots at the same time",
            "files",
            "an upload that stops is removed after an hour",
        ),
    ),
    *_of(
        Scope.USER,
        "gnode.daemon.elastic",
        (
            "MAX_USER_TRAINING_CONNECTIONS",
            "connections of training jobs to gnode",
            "descriptors",
            "one user cannot take all of them",
        ),
    ),
    *_of(
        Scope.NODE,
        "gnode.daemon.elastic",
        (
            "MAX_TRAINING_CONNECTIONS",
            "connections of training jobs to gnode",
            "descriptors",
            "one for each rank",
        ),
    ),
    *_of(
        Scope.ATTEMPT,
        "gnode.daemon.elastic",
        (
            "MAX_TRAINING_LINES",
            "lines of a training job to gnode at once",
            "lines",
            "then 5 a second, over all of its connections; further lines are read later",
        ),
    ),
    *_of(
        Scope.ATTEMPT,
        "gnode.daemon.steps",
        ("MAX_STEP_CALLS", "requests for step agents at once", "calls", "then 20 a second"),
        ("MAX_STEP_ORDERS", "orders for step agents that wait", "orders", "while the agent starts"),
    ),
    *_of(
        Scope.USER,
        "gsched.logs",
        (
            "MAX_SOURCE_LINES",
            "lines about one user or address in a daemon's log",
            "lines",
            "in a minute; the others are counted, and one line has their number",
        ),
    ),
    *_of(
        Scope.ALL,
        "gsched.logs",
        ("MAX_LINES", "lines about users and addresses in a daemon's log", "lines", "in a minute"),
    ),
    *_of(
        Scope.USER,
        "gschedd.store.code",
        (
            "[limits] snapshots_per_user_bytes",
            "code snapshots on the head",
            "bytes",
            "0: a quarter of the quota of all users",
            0,
        ),
        ("[limits] snapshots_per_user", "code snapshots on the head", "files", "inodes", 1000),
    ),
    *_of(
        Scope.USER,
        "gschedd.daemon.service",
        (
            "[limits] texts_per_user_bytes",
            "scripts and environments in the database",
            "bytes",
            "half a million different environments",
            4_294_967_296,
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.daemon.setup",
        (
            "[history] keep_jobs_per_user",
            "finished jobs in the database",
            "jobs",
            "each has some kilobytes; the oldest are removed",
            250_000,
        ),
    ),
    *_of(
        Scope.ALL,
        "gschedd.store.code",
        (
            "[limits] snapshots_total_bytes",
            "code snapshots on the head",
            "bytes",
            "0: a tenth of the head's file system",
            0,
        ),
        ("[limits] snapshots_total", "code snapshots on the head", "files", "inodes", 20_000),
    ),
    *_of(
        Scope.JOB,
        "gschedd.core.requests.submit",
        (
            "[limits] default_memory_per_cpu_bytes",
            "memory of a job that states none, for each CPU",
            "bytes",
            "0: no limit",
            0,
        ),
        (
            "[limits] default_memory_per_gpu_bytes",
            "memory of a job that states none, for each GPU",
            "bytes",
            "0: as for CPUs",
            0,
        ),
        (
            "[limits] max_interactive_walltime_s",
            "walltime of an interactive job",
            "seconds",
            "0: no limit but that of its queue",
            0,
        ),
    ),
    *_of(
        Scope.JOB,
        "gschedd.store.code",
        (
            "[limits] snapshot_bytes",
            "code snapshot",
            "bytes",
            "code without data and results",
            268_435_456,
        ),
    ),
    *_of(
        Scope.JOB,
        "gschedd.daemon.service",
        (
            "[limits] snapshot_files",
            "files of a code snapshot",
            "files",
            "the client counts them; the head keeps one archive",
            20_000,
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.notify.scan",
        (
            "[notify] mails_per_user_hour",
            "mails about jobs in an hour",
            "mails",
            "more than anybody reads; the last one says so",
            100,
        ),
    ),
    *_of(
        Scope.JOB,
        "gnode.main",
        (
            "[node] job_open_files",
            "open files of a process of a job",
            "descriptors",
            "a soft limit, as in a login shell",
            1_024,
        ),
        (
            "[node] job_processes",
            "processes and threads of a job",
            "processes",
            "0: no limit but that of the machine",
            0,
        ),
    ),
    *_of(
        Scope.ATTEMPT,
        "gnode.supervisor.shells",
        ("gnode.supervisor.shells.SHELLS_MAX", "shells at once", "shells", "`gshell`", 16),
    ),
    *_of(
        Scope.ATTEMPT,
        "gnode.supervisor.forward",
        (f"{_PORTS}.CONNECTIONS_MAX", "connections of a `gshell -L`", "connections", _AS_SHELL, 64),
        (f"{_PORTS}.WINDOW_BYTES", "bytes under way of each", "bytes", "each way", 262_144),
    ),
    *_of(
        Scope.ATTEMPT,
        "gnode.core.sessions",
        (
            "MAX_SHELLS_BYTES",
            "records of shells in a node's spool",
            "bytes",
            "1,000 to 10,000 shells one after the other; the spool is root's",
        ),
    ),
    *_of(
        Scope.USER,
        "gnode.core.sessions",
        (
            "MAX_USER_SHELLS_BYTES",
            "records of shells in a node's spool",
            "bytes",
            "of all attempts of a user whose records the node has",
        ),
    ),
    *_of(
        Scope.ALL,
        "gschedd.notify.ledger",
        ("MAX_NOTICES", "notices that wait for a way", "notices", "about a kilobyte each"),
    ),
)
