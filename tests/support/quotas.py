"""The table of all limits and quotas.

`gsched.model.limits` and a few other modules have the numbers; docs/protocol.md shows this
table, and tests compare each row with its constant or configuration key, with the module that
enforces it, and with the document.
"""

from typing import Final

from gsched.model import limits
from tests.support.limit_records import Scope, rows_of
from tests.support.node_quotas import NODE_LIMITS

_BY_LISTS: Final = "gschedd.http.lists"
_RELAYS = "count: connections of users through a host"
_LISTS: Final = "count: lists of more than 250 past jobs that are sent at the same time"
LIMITS: Final = (
    *rows_of(
        Scope.REQUEST,
        "gschedd.http.bodies",
        (
            "MAX_SUBMIT_BYTES",
            "bytes: a submission",
            "a script of full size, escaped as JSON, with its environment; decoded in pieces",
        ),
        ("MAX_REQUEST_BYTES", "bytes: any other request", "10,000 job ids: decoding takes 2 ms"),
    ),
    *rows_of(
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
    *rows_of(
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
    *rows_of(
        Scope.REQUEST,
        "gschedd.http.queries",
        ("MAX_STORIES", "count: jobs with all details in an answer", "about 10 MB at most"),
        ("MAX_HISTORY_ROWS", "count: past jobs in an answer", "about 30 MB, sent in slices"),
    ),
    *rows_of(
        Scope.REQUEST,
        "gschedd.http.filters",
        (
            "MAX_PATTERN_WILDCARDS",
            "count: wildcards in a pattern of names",
            "each further one multiplies the steps of a comparison",
        ),
    ),
    *rows_of(Scope.ALL, "gschedd.http.relays", ("MAX_RELAYS_OF_NODE", _RELAYS, "of a login host")),
    *rows_of(Scope.USER, _BY_LISTS, ("MAX_USER_LISTS", _LISTS, "further ones wait")),
    *rows_of(Scope.ALL, _BY_LISTS, ("MAX_LISTS", _LISTS, "each takes some megabytes of the head")),
    *rows_of(
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
    *rows_of(
        Scope.JOB,
        "gschedd.http.decoding",
        (
            "MAX_FIELD_BYTES",
            "bytes: resource list, holds or training, as JSON",
            "escaped; checked in jobs of more than 64 KiB before they are decoded",
        ),
    ),
    *rows_of(
        Scope.JOB,
        "gschedd.core.requests.interactive",
        (
            "[limits] max_detach_timeout_s",
            "seconds: detach timeout of an interactive job here",
            "0: it may be none; a queue can have its own",
            0,
        ),
    ),
    *rows_of(
        Scope.JOB,
        "gsched.model.limits",
        ("MAX_PATH", "characters: path", "PATH_MAX of Linux"),
        (
            "MAX_WORD",
            "characters: account, QOS, queue, reservation, kind, client key, node or feature",
            "NAME_MAX of Linux: names become names of files",
        ),
        ("MAX_NAME", "characters: name", "PBS's own; a file NAME.oNUMBER is possible"),
        ("MAX_ARRAY_TEXT", "characters: list of an array's indices", "1,000 ranges"),
    ),
    *rows_of(
        Scope.REQUEST,
        "gsched.model.limits",
        (
            "MAX_MESSAGE",
            "characters: message, reason, or any other text",
            "it is kept once for each job that an action names",
        ),
    ),
    *rows_of(
        Scope.JOB,
        "gsched.model.mail",
        ("MAX_RECIPIENTS", "count: recipients of a job's mail", "a mailing list holds more"),
        ("MAX_RECIPIENT", "characters: recipient of mail", "the longest address in RFC 5321"),
    ),
    *rows_of(
        Scope.JOB,
        "gschedd.core.requests.containers",
        ("MAX_MOUNTS", "count: mounts of a container", "each is a word of a command line"),
    ),
    *rows_of(
        Scope.JOB,
        "gsched.model.arrays",
        (
            "MAX_ARRAY_SPANS",
            "count: ranges of an array's indices",
            "also the ranges that remain after single elements are cancelled or held",
        ),
    ),
    *rows_of(
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
    *rows_of(
        Scope.JOB,
        "gschedd.core.requests.interactive",
        (
            "MAX_DETACH_TIMEOUT_S",
            "seconds: detach timeout of an interactive job",
            "30 days; a job that is to wait longer states none",
        ),
    ),
    *rows_of(
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
    *rows_of(
        Scope.USER,
        "gschedd.core.requests.content",
        (
            "MAX_USER_ARGUMENT_BYTES",
            "bytes: arguments of unfinished jobs",
            "with about the overhead of Python; they stay in memory",
        ),
    ),
    *rows_of(
        Scope.USER,
        "gschedd.core.requests.access",
        (
            "[head] max_queued_per_user",
            "count: unfinished jobs",
            "a client that repeats a submission without end fills no memory",
            1_000_000,
        ),
    ),
    *rows_of(
        Scope.USER,
        "gschedd.http.bodies",
        (
            "MAX_USER_BODY_BYTES",
            "bytes: requests in flight",
            "four of the largest requests; counted as they arrive",
        ),
    ),
    *rows_of(
        Scope.ALL,
        "gschedd.http.bodies",
        ("MAX_BODY_BYTES", "bytes: requests in flight", "four users at their limit"),
    ),
    *rows_of(
        Scope.ALL,
        "gschedd.engine.loop",
        (
            "MAX_INBOX",
            "inputs: requests that wait for the head",
            "more are refused: overload is an error, not a hang",
        ),
    ),
    *rows_of(
        Scope.USER,
        "gschedd.http.listening",
        (
            "MAX_USER_CONNECTIONS",
            "descriptors: connections to the head",
            "a `gwait` for each of a thousand jobs; at most a quarter of all users'",
        ),
    ),
    *rows_of(
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
    *rows_of(
        Scope.ADDRESS,
        "gschedd.http.listening",
        (
            "MAX_UNPROVEN_OF_ADDRESS",
            "descriptors: connections to the node port that have proven nothing",
            (
                "a further one takes the place of the oldest; of 256 of all addresses that of one "
                "whose peer has said nothing for a second, or it waits"
            ),
        ),
    ),
    *rows_of(
        Scope.USER,
        "gschedd.http.sessions",
        (
            "MAX_USER_SESSIONS",
            "sessions: terminal sessions",
            "each has two connections and two buffers",
        ),
    ),
    *rows_of(
        Scope.ALL,
        "gschedd.http.sessions",
        ("MAX_SESSIONS", "sessions: terminal sessions", "16 users at their limit"),
    ),
    *rows_of(
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
    *rows_of(
        Scope.USER,
        "gschedd.store.code",
        (
            "MAX_USER_UPLOADS",
            "files: uploads of code snapshots at the same time",
            "an upload that stops is removed after an hour",
        ),
    ),
    *rows_of(
        Scope.ALL,
        "gschedd.http.deliveries",
        (
            "MAX_DELIVERIES",
            "pieces: pieces of output on their way through the head",
            "a MiB each; further ones wait on their nodes",
        ),
        (
            "MAX_HOST_DELIVERIES",
            "pieces: pieces on their way through the head, of one host of submission",
            "one while it has not answered for 2 s",
        ),
    ),
    *rows_of(
        Scope.NODE,
        "gschedd.http.deliveries",
        (
            "MAX_NODE_PIECES",
            "pieces: pieces on their way through the head, of one node",
            "until they are written or sent; a gnode has 64 at most, further ones are refused",
        ),
    ),
    *rows_of(
        Scope.ATTEMPT,
        "gschedd.http.deliveries",
        (
            "MAX_FILE_PIECES",
            "pieces: pieces of a file on their way to the host of submission",
            "the host writes them in their order",
        ),
    ),
    *rows_of(
        Scope.JOB,
        "gschedd.core.requests.content",
        (
            "MAX_MARK",
            "characters: mark of the directory of submission",
            "25 for each directory on the way",
        ),
    ),
    *rows_of(
        Scope.USER,
        "gsched.logs",
        (
            "MAX_SOURCE_LINES",
            "lines: lines about one user or address in a daemon's log",
            "in a minute; the others are counted, and one line has their number",
        ),
    ),
    *rows_of(
        Scope.ALL,
        "gsched.logs",
        ("MAX_LINES", "lines: lines about users and addresses in a daemon's log", "in a minute"),
    ),
    *rows_of(
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
    *rows_of(
        Scope.USER,
        "gschedd.daemon.service",
        (
            "[limits] texts_per_user_bytes",
            "bytes: scripts and environments in the database",
            "half a million different environments",
            4_294_967_296,
        ),
    ),
    *rows_of(
        Scope.USER,
        "gschedd.daemon.setup",
        (
            "[history] keep_jobs_per_user",
            "jobs: finished jobs in the database",
            "each has some kilobytes; the oldest are removed",
            250_000,
        ),
    ),
    *rows_of(
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
    *rows_of(
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
    *rows_of(
        Scope.JOB,
        "gschedd.store.code",
        (
            "[limits] snapshot_bytes",
            "bytes: code snapshot",
            "code without data and results",
            268_435_456,
        ),
    ),
    *rows_of(
        Scope.JOB,
        "gschedd.http.code",
        (
            "[limits] snapshot_files",
            "files: files of a code snapshot",
            "the client counts them; the head keeps one archive",
            20_000,
        ),
    ),
    *rows_of(
        Scope.USER,
        "gschedd.notify.scan",
        (
            "[notify] mails_per_user_hour",
            "mails: mails about jobs in an hour",
            "more than anybody reads; the last one says so",
            100,
        ),
    ),
    *rows_of(
        Scope.ALL,
        "gschedd.notify.ledger",
        ("MAX_NOTICES", "notices: notices that wait for a way", "about a kilobyte each"),
    ),
    *NODE_LIMITS,
)
