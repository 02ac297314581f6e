"""How much a request, a user or a job may take: checked before any work is done for it.

Everything that a user, a job or a node can send has a limit here, or one that follows from these.
A limit is far above what anybody needs and small enough that the worst request costs the head some
milliseconds: it has one event loop, and everybody else waits for that.

Sizes are in bytes where the name says so, else in characters or counts. docs/protocol.md says
in which scope each counts, who enforces it, and why it is what it is.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from gsched.errors import InvalidRequestError

MIB: Final = 1024 * 1024

# --- one request of the HTTP API ---

MAX_SUBMIT_BYTES: Final = 16 * MIB
MAX_REQUEST_BYTES: Final = MIB
MAX_JOBS_PER_REQUEST: Final = 10_000
MAX_DRY_RUN_JOBS: Final = 100
MAX_STORIES: Final = 100
MAX_NODES_PER_REQUEST: Final = 10_000
#: Counted before a body is decoded, as what decoding costs is the number of objects.
MAX_REQUEST_TEXTS: Final = 12_000
MAX_SUBMIT_TEXTS: Final = 31_000

# --- one job ---

MAX_SCRIPT_BYTES: Final = 8 * MIB
MAX_ENVIRONMENT_BYTES: Final = MIB
MAX_VARIABLES: Final = 10_000
MAX_ARGUMENTS: Final = 10_000
MAX_ARGUMENT_BYTES: Final = MIB
#: Of all unfinished jobs of a user together, with about what Python adds; they stay in memory.
MAX_USER_ARGUMENT_BYTES: Final = 512 * MIB
MAX_PATH: Final = 4096
#: The mark of the directory of submission: about 25 characters for each directory on the way.
MAX_MARK: Final = 4096
MAX_WORD: Final = 255
#: The name of a job: PBS's own limit, as a file NAME.oNUMBER has to be possible.
MAX_NAME: Final = 236
MAX_MESSAGE: Final = 1024
#: The variable in which qsub sends its command line, for ``qstat -f``. Nodes keep it from the job.
SUBMIT_ARGS: Final = "PBS_SUBMIT_ARGS"
MAX_ID: Final = 255
MAX_NAMED_NODES: Final = 1000
#: Recipients of a job's mail, and the longest: RFC 5321 allows no longer address.
MAX_RECIPIENTS: Final = 8
MAX_RECIPIENT: Final = 254
MAX_MOUNTS: Final = 64
MAX_RATES: Final = 256
MAX_ARRAY_TEXT: Final = 16 * 1024
MAX_ARRAY_SPANS: Final = 1000
MAX_LINES_BYTES: Final = 8 * MIB
MAX_LINE_BYTES: Final = 64 * 1024
MAX_FIELD_BYTES: Final = MIB // 4

#: Of a job's lease, seconds: nodes renew a lease six times in its length.
MIN_LEASE_S: Final = 30
MAX_LEASE_S: Final = 7 * 86_400

#: Between the checkpoints that a training makes by itself, seconds.
MAX_CHECKPOINT_INTERVAL_S: Final = 365 * 86_400

#: Of an interactive job, seconds: longer is better said as none.
MAX_DETACH_TIMEOUT_S: Final = 30 * 86_400

# --- one resource list ---

MAX_RESOURCE_TEXTS: Final = 64
MAX_RESOURCE_TEXT: Final = 16 * 1024
MAX_RESOURCE_TERMS: Final = 256
MAX_RESOURCE_TERM: Final = 128
MAX_CHUNKS: Final = 256
MAX_CHUNK_WORDS: Final = 64
MAX_PLACES: Final = 100_000

# --- one query ---

MAX_PATTERN_WILDCARDS: Final = 8
MAX_HISTORY_ROWS: Final = 100_000
MAX_USER_LISTS: Final = 2
MAX_LISTS: Final = 32

# --- of one user, and of all ---

#: Requests in flight.
MAX_USER_BODY_BYTES: Final = 64 * MIB
MAX_BODY_BYTES: Final = 256 * MIB
#: Requests and reports that wait for the head's loop.
MAX_INBOX: Final = 20_000
#: Connections to the head's sockets; those of nodes until they have proven what they are.
MAX_USER_CONNECTIONS: Final = 1024
MAX_CONNECTIONS: Final = 16_384
MAX_UNPROVEN_OF_ADDRESS: Final = 64
MAX_UNPROVEN: Final = 256
MAX_USER_SESSIONS: Final = 64
MAX_SESSIONS: Final = 1024
MAX_SESSIONS_OF_NODE: Final = 512
#: Connections of users' commands on one node or login host, of one user and of all.
MAX_USER_RELAYS: Final = 256
MAX_RELAYS_OF_NODE: Final = 1024
#: Archives of code snapshots that a user sends at the same time.
MAX_USER_UPLOADS: Final = 4
#: Deliveries that wait for a way, those about jobs of one user, and those for a host of his URLs.
MAX_NOTICES: Final = 100_000
MAX_USER_NOTICES: Final = 10_000
MAX_HOST_NOTICES: Final = 1000
#: Lines of a daemon's log about a user or address, and about all of them, in a minute.
MAX_SOURCE_LINES: Final = 5
MAX_LINES: Final = 60

# --- of jobs on a node ---

MAX_USER_TRAINING_CONNECTIONS: Final = 256
MAX_TRAINING_CONNECTIONS: Final = 1024
#: Lines of a training job to gnode, and calls for step agents, at once.
MAX_TRAINING_LINES: Final = 50
MAX_STEP_CALLS: Final = 200
MAX_STEP_ORDERS: Final = 256
#: What the orders to start shells take in the spool of a node, which belongs to root.
MAX_SHELLS_BYTES: Final = 4 * MIB
MAX_USER_SHELLS_BYTES: Final = 64 * MIB

#: What returns to a host of submission: files of an attempt, bytes of each, and bytes in a second
#: of all together. While an attempt runs, so much of either file in ten seconds.
MAX_DELIVERED_FILES: Final = 10_000
MAX_DELIVERED_BYTES: Final = 64 * 1024 * MIB
MAX_DELIVERY_RATE: Final = 256 * MIB
MAX_RUNNING_OUTPUT: Final = 8 * MIB
#: Pieces on their way through the head, each of a MiB at most: of all hosts, and of one.
MAX_DELIVERIES: Final = 64
MAX_HOST_DELIVERIES: Final = 16
#: Those of one node, until the head has written or sent them; and those of one file.
MAX_NODE_PIECES: Final = 96
MAX_FILE_PIECES: Final = 8

#: How much of what somebody wrote is shown in an error.
SHOWN: Final = 80


#: The longest text of each field of a submission, an alteration or an action, in characters.
TEXTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "account": MAX_WORD,
        "array": MAX_ARRAY_TEXT,
        "checkpoint_dir": MAX_PATH,
        "join": MAX_WORD,
        "key": MAX_WORD,
        "kind": MAX_WORD,
        "launch": MAX_WORD,
        "mail_points": MAX_WORD,
        "mail_to": MAX_MESSAGE,
        "message": MAX_MESSAGE,
        "name": MAX_NAME,
        "notify_url": MAX_MESSAGE,
        "python": MAX_PATH,
        "qos": MAX_WORD,
        "queue": MAX_WORD,
        "reason": MAX_MESSAGE,
        "requeue_on": MAX_WORD,
        "reservation": MAX_WORD,
        "shell": MAX_PATH,
        "stderr_path": MAX_PATH,
        "stdout_path": MAX_PATH,
        "submit_dir": MAX_PATH,
        "urgency": MAX_WORD,
        "workdir": MAX_PATH,
    }
)


#: Texts that lists and reports show to others: one line, of what a terminal and a page can show.
#: Control characters, and those that turn the direction of a text, would change what stands beside.
ONE_LINE: Final = frozenset(
    {"account", "comment", "kind", "label", "message", "name", "qos", "queue", "reason"}
    | {"reservation"}
)
#: Texts whose bytes are limited: see `MAX_SCRIPT_BYTES`.
_OWN_LIMITS: Final = frozenset({"script", "lines"})


def texts_of(kind: type[Struct]) -> tuple[tuple[str, int], ...]:
    """Return the fields of a kind of message that are one text, each with its limit in characters.

    `MAX_MESSAGE` is the limit of what is not in `TEXTS`.
    """
    texts = (field.name for field in structs.fields(kind) if field.type in {str, str | None})
    return tuple((name, TEXTS.get(name, MAX_MESSAGE)) for name in texts if name not in _OWN_LIMITS)


def check_texts(message: Struct, fields: tuple[tuple[str, int], ...]) -> None:
    """Check the length of a message's texts, and what others see; ``fields`` are of `texts_of`.

    Raises:
        InvalidRequestError: one is too long, or has characters that cannot be shown.
    """
    for name, most in fields:
        text = getattr(message, name)
        if text is None:
            continue
        if len(text) > most:
            raise InvalidRequestError(
                f"{name} has {len(text)} characters; the limit is {most}",
                hint="shorten it",
            )
        if name in ONE_LINE:
            check_printable(name, text)


def check_printable(name: str, text: str) -> None:
    """Check a text that is shown to others.

    Raises:
        InvalidRequestError: it has control characters, or others that cannot be shown.
    """
    if not text.isprintable():
        raise InvalidRequestError(
            f"{name} {shown(text)} has characters that cannot be shown",
            hint="write one line without control characters",
        )


def check_words(name: str, words: Collection[str], *, most: int, longest: int) -> None:
    """Check how many words a list has and how long each is.

    Raises:
        InvalidRequestError: there are too many, or one is too long.
    """
    if len(words) > most:
        raise InvalidRequestError(f"{len(words)} {name}; the limit is {most}", hint="give fewer")
    for word in words:
        if len(word) > longest:
            raise InvalidRequestError(
                f"one of the {name} has {len(word)} characters; the limit is {longest}"
            )
        check_printable(f"one of the {name},", word)


def check_bytes(name: str, texts: Collection[str], *, count: int, size_bytes: int) -> None:
    """Check how many texts there are and what they take together.

    Raises:
        InvalidRequestError: there are too many, or they are too large together.
    """
    if len(texts) > count:
        raise InvalidRequestError(f"{len(texts)} {name}; the limit is {count}", hint="give fewer")
    size = sum(map(byte_count, texts))
    if size > size_bytes:
        raise InvalidRequestError(
            f"the {name} have {size} bytes; the limit is {size_bytes}", hint="put them into a file"
        )


def byte_count(text: str) -> int:
    """Return the bytes of a text as UTF-8; what is no text counts as it came."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def shown(text: str) -> str:
    """Return what is shown of a text that somebody wrote: its beginning, quoted, on one line."""
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}... ({len(text)} characters)"
