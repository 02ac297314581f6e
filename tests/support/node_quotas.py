"""The limits that nodes enforce: see `tests.support.quotas`."""

from typing import Final

from tests.support.limit_records import Scope, rows_of

_PORTS: Final = "gsched.forwarding"
_AS_SHELL: Final = "a browser opens six; it counts as a shell"
_RELAYS = "count: connections of users through a host"
NODE_LIMITS: Final = (
    *rows_of(
        Scope.USER, "gnode.daemon.commands", ("MAX_USER_RELAYS", _RELAYS, "some tens are used")
    ),
    *rows_of(
        Scope.NODE,
        "gnode.daemon.sessions",
        ("MAX_SESSIONS_OF_NODE", "sessions: terminal sessions", "eight users at their limit"),
    ),
    *rows_of(
        Scope.ATTEMPT,
        "gnode.daemon.outbox",
        (
            "MAX_DELIVERED_FILES",
            "files: files that return to the host of submission",
            "more belong into an archive",
        ),
    ),
    *rows_of(
        Scope.ATTEMPT,
        "gnode.daemon.deliveries",
        (
            "MAX_DELIVERED_BYTES",
            "bytes: file that returns to the host of submission",
            "64 GiB: it passes the head; what is larger stays on the node",
        ),
    ),
    *rows_of(
        Scope.NODE,
        "gnode.daemon.deliveries",
        (
            "MAX_DELIVERY_RATE",
            "bytes: output that returns, in a second",
            "of all attempts of a node together; what is staged in has the same limit",
        ),
        (
            "MAX_RUNNING_OUTPUT",
            "bytes: output of a running attempt that returns, in 10 s",
            "of each of its two files; the rest at its end",
        ),
    ),
    *rows_of(
        Scope.JOB,
        "gnode.steps.stage_in",
        (
            "gnode.steps.stage_in.FILES_MAX",
            "files: files of a directory that is staged in",
            "as of what returns",
            10_000,
        ),
        (
            "gnode.steps.stage_in.BYTES_MAX",
            "bytes: file that is staged in",
            "64 GiB: it passes the head",
            64 * 1024**3,
        ),
    ),
    *rows_of(
        Scope.NODE,
        "gnode.daemon.steps",
        (
            "gnode.daemon.steps.STAGED_AT_ONCE",
            "pieces: pieces of staged files on their way to a node",
            "a MiB each, 16 of one host of submission; at the rate of output that returns",
            32,
        ),
    ),
    *rows_of(
        Scope.USER,
        "gnode.daemon.steps",
        (
            "gnode.daemon.steps.STAGED_OF_USER",
            "pieces: pieces of staged files that the programs of a user have not read",
            "a program that reads nothing for 20 s is cut off",
            16,
        ),
    ),
    *rows_of(
        Scope.USER,
        "gnode.daemon.elastic",
        (
            "MAX_USER_TRAINING_CONNECTIONS",
            "descriptors: connections of training jobs to gnode",
            "one user cannot take all of them",
        ),
    ),
    *rows_of(
        Scope.NODE,
        "gnode.daemon.elastic",
        (
            "MAX_TRAINING_CONNECTIONS",
            "descriptors: connections of training jobs to gnode",
            "one for each rank",
        ),
    ),
    *rows_of(
        Scope.ATTEMPT,
        "gnode.daemon.elastic",
        (
            "MAX_TRAINING_LINES",
            "lines: lines of a training job to gnode at once",
            "then 5 a second, over all of its connections; further lines are read later",
        ),
    ),
    *rows_of(
        Scope.ATTEMPT,
        "gnode.daemon.steps",
        ("MAX_STEP_CALLS", "calls: requests for step agents at once", "then 20 a second"),
        ("MAX_STEP_ORDERS", "orders: orders for step agents that wait", "while the agent starts"),
    ),
    *rows_of(
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
    *rows_of(
        Scope.ATTEMPT,
        "gnode.supervisor.shells",
        ("gnode.supervisor.shells.SHELLS_MAX", "shells: shells at once", "`gshell`", 16),
    ),
    *rows_of(
        Scope.USER,
        "gnode.daemon.reading",
        (
            "gnode.daemon.reading.READERS_OF_USER",
            "processes: processes of a node that read output or write messages at once",
            "`gpeek`, `gmsg`; of one attempt one at a time",
            4,
        ),
    ),
    *rows_of(
        Scope.NODE,
        "gnode.daemon.reading",
        (
            "gnode.daemon.reading.READERS_MAX",
            "processes: processes of a node that read output or write messages at once",
            "each ends after 10 s",
            16,
        ),
    ),
    *rows_of(
        Scope.ATTEMPT,
        "gnode.supervisor.forward",
        (f"{_PORTS}.CONNECTIONS_MAX", "connections: connections of a `gshell -L`", _AS_SHELL, 64),
        (f"{_PORTS}.WINDOW_BYTES", "bytes: bytes under way of each", "each way", 262_144),
    ),
    *rows_of(
        Scope.ATTEMPT,
        "gnode.core.sessions",
        (
            "MAX_SHELLS_BYTES",
            "bytes: records of shells in a node's spool",
            "1,000 to 10,000 shells one after the other; the spool is root's",
        ),
    ),
    *rows_of(
        Scope.USER,
        "gnode.core.sessions",
        (
            "MAX_USER_SHELLS_BYTES",
            "bytes: records of shells in a node's spool",
            "of all attempts of a user whose records the node has",
        ),
    ),
)
