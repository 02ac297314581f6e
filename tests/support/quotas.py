"""The table of all limits and quotas: how much, in which scope, who enforces it, and why.

`gsched.model.limits` and a few other modules have the numbers; docs/protocol.md shows this
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


#: Name, unit and limited thing, and reason; of a configuration key, also its default.
_Row: TypeAlias = tuple[str, str, str] | tuple[str, str, str, int]


def _of(scope: Scope, by: str, *rows: _Row) -> Iterator[Limit]:
    """Yield the limits that a module enforces in a scope."""
    for name, limited, why, *default in rows:
        unit, _, of = limited.partition(": ")
        most = default[0] if default else getattr(limits, str(name))
        yield Limit(name=name, of=of, most=most, unit=unit, scope=scope, by=by, why=why)


_PORTS: Final = "gsched.forwarding"
_AS_SHELL: Final = "a browser opens six; it counts as a shell"
_BY_LISTS: Final = "gschedd.http.lists"
_RELAYS = "count: connections of users through a host"
_LISTS: Final = "count: lists of more than 250 past jobs that are sent at the same time"
LIMITS: Final = (
    *_of(
        Scope.REQUEST,
        "gschedd.http.bodies",
        (
            "MAX_SUBMIT_BYTES",
            "bytes: a submission",
            "a script of full size, escaped as JSON, with its environment; decoded in pieces",
        ),
        ("MAX_REQUEST_BYTES", "bytes: any other request", "10,000 job ids: decoding takes 2 ms"),
    ),
    *_of(
        Scope.REQUEST,
        "gschedd.http.decoding",
        (
            "MAX_REQUEST_TEXTS",
            "count: texts in any other request",
            "10,000 job ids, and what is to be done with them; each text is an object to make",
        ),
        (
            "MAX_SUBMIT_TEXTS",
            "count: texts in a submission beyond 1 MiB",
            "it holds one job, with all arguments and variables that a job may have",
        ),
        (
            "MAX_DRY_RUN_JOBS",
            "count: jobs in a dry run",
            "each asks the policy up to some hundred times",
        ),
    ),
    *_of(
        Scope.REQUEST,
        "gschedd.http.commands",
        (
            "MAX_JOBS_PER_REQUEST",
            "count: jobs or job ids in a request",
            "a large sweep; the client splits larger ones",
        ),
        ("MAX_NODES_PER_REQUEST", "count: nodes in an action on nodes", "every node there is"),
        ("MAX_ID", "characters: job id as written", "a number and the name of a server"),
        ("MAX_NAMED_NODES", "count: nodes that a migration names", "each is looked up"),
    ),
    *_of(
        Scope.REQUEST,
        "gschedd.http.queries",
        ("MAX_STORIES", "count: jobs with all details in an answer", "about 10 MB at most"),
        (
            "MAX_PATTERN_WILDCARDS",
            "count: wildcards in a pattern of names",
            "each further one multiplies the steps of a comparison",
        ),
        ("MAX_HISTORY_ROWS", "count: past jobs in an answer", "about 30 MB, sent in slices"),
    ),
    *_of(Scope.USER, "gnode.daemon.commands", ("MAX_USER_RELAYS", _RELAYS, "some tens are used")),
    *_of(Scope.ALL, "gschedd.http.relays", ("MAX_RELAYS_OF_NODE", _RELAYS, "of a login host")),
    *_of(Scope.USER, _BY_LISTS, ("MAX_USER_LISTS", _LISTS, "further ones wait")),
    *_of(Scope.ALL, _BY_LISTS, ("MAX_LISTS", _LISTS, "each takes some megabytes of the head")),
    *_of(
        Scope.JOB,
        "gschedd.core.requests.content",
        ("MAX_SCRIPT_BYTES", "bytes: script", "twice Slurm's max_script_size"),
        ("MAX_ENVIRONMENT_BYTES", "bytes: environment, names and values", "half of ARG_MAX"),
        ("MAX_VARIABLES", "count: variables in the environment", "a login shell has some 100"),
        ("MAX_ARGUMENTS", "count: arguments", "xargs passes about as many"),
        ("MAX_ARGUMENT_BYTES", "bytes: arguments together", "half of ARG_MAX"),
        ("MAX_RATES", "count: rates of a training", "one for each number of GPUs"),
        ("MAX_LINES_BYTES", "bytes: lines of an array's elements, together", "as a script"),
        ("MAX_LINE_BYTES", "bytes: line of an element", "half of a variable's limit in Linux"),
        (
            "[head] max_array_elements",
            "count: elements of an array",
            "each element that starts becomes a job of its own",
            100_000,
        ),
    ),
    *_of(
        Scope.JOB,
        "gschedd.http.decoding",
        (
            "MAX_FIELD_BYTES",
            "bytes: resource list, holds or training, as JSON",
            "escaped; checked in jobs of more than 64 KiB before they are decoded",
        ),
    ),
    *_of(
        Scope.JOB,
        "gschedd.core.requests.interactive",
        (
            "[limits] max_detach_timeout_s",
            "seconds: detach timeout of an interactive job here",
            "0: it may be none; a queue can have its own",
            0,
        ),
    ),
    *_of(
        Scope.JOB,
        "gsched.model.limits",
        ("MAX_PATH", "characters: path", "PATH_MAX of Linux"),
        (
            "MAX_WORD",
            "characters: name, account, queue, kind, client key, node or feature",
            "NAME_MAX of Linux: names become names of files",
        ),
        ("MAX_ARRAY_TEXT", "characters: list of an array's indices", "1,000 ranges"),
    ),
    *_of(
        Scope.REQUEST,
        "gsched.model.limits",
        (
            "MAX_MESSAGE",
            "characters: message, reason, or any other text",
            "it is kept once for each job that an action names",
        ),
    ),
    *_of(
        Scope.JOB,
        "gsched.model.mail",
        ("MAX_RECIPIENTS", "count: recipients of a job's mail", "a mailing list holds more"),
        ("MAX_RECIPIENT", "characters: recipient of mail", "the longest address in RFC 5321"),
    ),
    *_of(
        Scope.JOB,
        "gschedd.core.requests.containers",
        ("MAX_MOUNTS", "count: mounts of a container", "each is a word of a command line"),
    ),
    *_of(
        Scope.JOB,
        "gsched.model.arrays",
        (
            "MAX_ARRAY_SPANS",
            "count: ranges of an array's indices",
            "also the ranges that remain after single elements are cancelled or held",
        ),
    ),
    *_of(
        Scope.JOB,
        "gschedd.core.requests.checkpointing",
        (
            "MAX_LEASE_S",
            "seconds: lease",
            f"a week; at least {limits.MIN_LEASE_S} s: a lost connection is noticed after 15 s",
        ),
        (
            "MAX_CHECKPOINT_INTERVAL_S",
            "seconds: interval of checkpoints",
            "a year: no job lasts longer without one",
        ),
    ),
    *_of(
        Scope.JOB,
        "gschedd.core.requests.interactive",
        (
            "MAX_DETACH_TIMEOUT_S",
            "seconds: detach timeout of an interactive job",
            "30 days; a job that is to wait longer states none",
        ),
    ),
    *_of(
        Scope.JOB,
        "gsched.model.request",
        ("MAX_RESOURCE_TEXTS", "count: texts of a resource list", "one for each -l"),
        (
            "MAX_RESOURCE_TEXT",
            "characters: resource list",
            "256 host names of 63 characters; reading it takes about 2 ms",
        ),
        (
            "MAX_RESOURCE_TERMS",
            "count: terms of a resource list",
            "consumable resources of a site, one by one",
        ),
        (
            "MAX_RESOURCE_TERM",
            "characters: term of a resource list without its value",
            "an unknown name is compared with all known ones",
        ),
        (
            "MAX_CHUNKS",
            "count: chunks of nodes= or select=",
            "each is placed by itself, in every scheduling cycle; equal ones are written as N:...",
        ),
        ("MAX_CHUNK_WORDS", "count: words of a chunk", "each feature is looked for on a node"),
        ("MAX_PLACES", "count: places of a request", "more than any cluster has nodes"),
    ),
    *_of(
        Scope.USER,
        "gschedd.core.requests.content",
        (
            "MAX_USER_ARGUMENT_BYTES",
            "bytes: arguments of unfinished jobs",
            "with about the overhead of Python; they stay in memory",
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.core.requests.access",
        (
            "[head] max_queued_per_user",
            "count: unfinished jobs",
            "a client that repeats a submission without end fills no memory",
            1_000_000,
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.http.bodies",
        (
            "MAX_USER_BODY_BYTES",
            "bytes: requests in flight",
            "four of the largest requests; counted as they arrive",
        ),
    ),
    *_of(
        Scope.ALL,
        "gschedd.http.bodies",
        ("MAX_BODY_BYTES", "bytes: requests in flight", "four users at their limit"),
    ),
    *_of(
        Scope.ALL,
        "gschedd.engine.loop",
        (
            "MAX_INBOX",
            "inputs: requests that wait for the head",
            "more are refused: overload is an error, not a hang",
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.http.listening",
        (
            "MAX_USER_CONNECTIONS",
            "descriptors: connections to the head",
            "a `gwait` for each of a thousand jobs; at most a quarter of all users'",
        ),
    ),
    *_of(
        Scope.ALL,
        "gschedd.http.listening",
        (
            "MAX_CONNECTIONS",
            "descriptors: connections to the head",
            "at most three quarters of the descriptors; a sixteenth is for operators",
        ),
        (
            "MAX_UNPROVEN",
            "descriptors: connections to the node port that have proven nothing",
            "they have 5 s to prove that they are nodes",
        ),
    ),
    *_of(
        Scope.ADDRESS,
        "gschedd.http.listening",
        (
            "MAX_UNPROVEN_OF_ADDRESS",
            "descriptors: connections to the node port that have proven nothing",
            "a further one takes the place of the oldest",
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.http.sessions",
        (
            "MAX_USER_SESSIONS",
            "sessions: terminal sessions",
            "each has two connections and two buffers",
        ),
    ),
    *_of(
        Scope.ALL,
        "gschedd.http.sessions",
        ("MAX_SESSIONS", "sessions: terminal sessions", "16 users at their limit"),
    ),
    *_of(
        Scope.NODE,
        "gnode.daemon.sessions",
        ("MAX_SESSIONS_OF_NODE", "sessions: terminal sessions", "eight users at their limit"),
    ),
    *_of(
        Scope.USER,
        "gschedd.notify.ledger",
        (
            "MAX_USER_NOTICES",
            "notices: notices that wait for a way",
            "more are dropped; users take turns",
        ),
        (
            "MAX_HOST_NOTICES",
            "notices: notices that wait for a host of a user's URLs",
            "more are dropped",
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.store.code",
        (
            "MAX_USER_UPLOADS",
            "files: uploads of code snapshots at the same time",
            "an upload that stops is removed after an hour",
        ),
    ),
    *_of(
        Scope.USER,
        "gnode.daemon.elastic",
        (
            "MAX_USER_TRAINING_CONNECTIONS",
            "descriptors: connections of training jobs to gnode",
            "one user cannot take all of them",
        ),
    ),
    *_of(
        Scope.NODE,
        "gnode.daemon.elastic",
        (
            "MAX_TRAINING_CONNECTIONS",
            "descriptors: connections of training jobs to gnode",
            "one for each rank",
        ),
    ),
    *_of(
        Scope.ATTEMPT,
        "gnode.daemon.elastic",
        (
            "MAX_TRAINING_LINES",
            "lines: lines of a training job to gnode at once",
            "then 5 a second, over all of its connections; further lines are read later",
        ),
    ),
    *_of(
        Scope.ATTEMPT,
        "gnode.daemon.steps",
        ("MAX_STEP_CALLS", "calls: requests for step agents at once", "then 20 a second"),
        ("MAX_STEP_ORDERS", "orders: orders for step agents that wait", "while the agent starts"),
    ),
    *_of(
        Scope.USER,
        "gsched.logs",
        (
            "MAX_SOURCE_LINES",
            "lines: lines about one user or address in a daemon's log",
            "in a minute; the others are counted, and one line has their number",
        ),
    ),
    *_of(
        Scope.ALL,
        "gsched.logs",
        ("MAX_LINES", "lines: lines about users and addresses in a daemon's log", "in a minute"),
    ),
    *_of(
        Scope.USER,
        "gschedd.store.code",
        (
            "[limits] snapshots_per_user_bytes",
            "bytes: code snapshots on the head",
            "0: a quarter of the quota of all users",
            0,
        ),
        ("[limits] snapshots_per_user", "files: code snapshots on the head", "inodes", 1000),
    ),
    *_of(
        Scope.USER,
        "gschedd.daemon.service",
        (
            "[limits] texts_per_user_bytes",
            "bytes: scripts and environments in the database",
            "half a million different environments",
            4_294_967_296,
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.daemon.setup",
        (
            "[history] keep_jobs_per_user",
            "jobs: finished jobs in the database",
            "each has some kilobytes; the oldest are removed",
            250_000,
        ),
    ),
    *_of(
        Scope.ALL,
        "gschedd.store.code",
        (
            "[limits] snapshots_total_bytes",
            "bytes: code snapshots on the head",
            "0: a tenth of the head's file system",
            0,
        ),
        ("[limits] snapshots_total", "files: code snapshots on the head", "inodes", 20_000),
    ),
    *_of(
        Scope.JOB,
        "gschedd.core.requests.resources",
        (
            "[limits] default_memory_per_cpu_bytes",
            "bytes: memory of a job that states none, for each CPU",
            "0: no limit; a queue can have its own",
            0,
        ),
        (
            "[limits] default_memory_per_gpu_bytes",
            "bytes: memory of a job that states none, for each GPU",
            "0: as for CPUs; a queue can have its own",
            0,
        ),
        (
            "[limits] max_interactive_walltime_s",
            "seconds: walltime of an interactive job",
            "0: no limit but those of its queue",
            0,
        ),
    ),
    *_of(
        Scope.JOB,
        "gschedd.store.code",
        (
            "[limits] snapshot_bytes",
            "bytes: code snapshot",
            "code without data and results",
            268_435_456,
        ),
    ),
    *_of(
        Scope.JOB,
        "gschedd.http.code",
        (
            "[limits] snapshot_files",
            "files: files of a code snapshot",
            "the client counts them; the head keeps one archive",
            20_000,
        ),
    ),
    *_of(
        Scope.USER,
        "gschedd.notify.scan",
        (
            "[notify] mails_per_user_hour",
            "mails: mails about jobs in an hour",
            "more than anybody reads; the last one says so",
            100,
        ),
    ),
    *_of(
        Scope.JOB,
        "gnode.main",
        (
            "[node] job_open_files",
            "descriptors: open files of a process of a job",
            "a soft limit, as in a login shell",
            1_024,
        ),
        (
            "[node] job_processes",
            "processes: processes and threads of a job",
            "0: no limit but that of the machine",
            0,
        ),
    ),
    *_of(
        Scope.ATTEMPT,
        "gnode.supervisor.shells",
        ("gnode.supervisor.shells.SHELLS_MAX", "shells: shells at once", "`gshell`", 16),
    ),
    *_of(
        Scope.USER,
        "gnode.daemon.reading",
        (
            "gnode.daemon.reading.READERS_OF_USER",
            "processes: processes of a node that read output or write messages at once",
            "`gpeek`, `gmsg`; of one attempt one at a time",
            4,
        ),
    ),
    *_of(
        Scope.NODE,
        "gnode.daemon.reading",
        (
            "gnode.daemon.reading.READERS_MAX",
            "processes: processes of a node that read output or write messages at once",
            "each ends after 10 s",
            16,
        ),
    ),
    *_of(
        Scope.ATTEMPT,
        "gnode.supervisor.forward",
        (f"{_PORTS}.CONNECTIONS_MAX", "connections: connections of a `gshell -L`", _AS_SHELL, 64),
        (f"{_PORTS}.WINDOW_BYTES", "bytes: bytes under way of each", "each way", 262_144),
    ),
    *_of(
        Scope.ATTEMPT,
        "gnode.core.sessions",
        (
            "MAX_SHELLS_BYTES",
            "bytes: records of shells in a node's spool",
            "1,000 to 10,000 shells one after the other; the spool is root's",
        ),
    ),
    *_of(
        Scope.USER,
        "gnode.core.sessions",
        (
            "MAX_USER_SHELLS_BYTES",
            "bytes: records of shells in a node's spool",
            "of all attempts of a user whose records the node has",
        ),
    ),
    *_of(
        Scope.ALL,
        "gschedd.notify.ledger",
        ("MAX_NOTICES", "notices: notices that wait for a way", "about a kilobyte each"),
    ),
)
