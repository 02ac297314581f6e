"""How large a request may be: one table, checked before any work is done for it.

Everything that a user, a job or a node can send has a limit here, or one that follows from these.
A limit is far above what anybody needs and small enough that the worst request costs the head some
milliseconds: it has one event loop, and everybody else waits for that.

Sizes are in bytes where the name says so, else in characters or counts. `LIMITS` says why each is
what it is; docs/protocol.md shows it, and a test compares the two.
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
MAX_WORD: Final = 255
MAX_MESSAGE: Final = 1024
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

#: How much of what somebody wrote is shown in an error.
SHOWN: Final = 80


class Limit(Struct, frozen=True, kw_only=True):
    """One limit: of what, how much, in which unit, and why so much."""

    of: str
    most: int
    unit: str
    why: str


def _limit(of: str, most: int, unit: str, why: str) -> Limit:
    return Limit(of=of, most=most, unit=unit, why=why)


LIMITS: Final = (
    _limit(
        "a submission",
        MAX_SUBMIT_BYTES,
        "bytes",
        "a script of full size, escaped as JSON, with its environment; decoded in pieces",
    ),
    _limit(
        "any other request",
        MAX_REQUEST_BYTES,
        "bytes",
        "10,000 job ids with their server's name; decoding takes 2 ms",
    ),
    _limit(
        "texts in any other request",
        MAX_REQUEST_TEXTS,
        "count",
        "10,000 job ids, and what is to be done with them; each text is an object to make",
    ),
    _limit(
        "texts in a submission beyond 1 MiB",
        MAX_SUBMIT_TEXTS,
        "count",
        "it holds one job, with all arguments and variables that a job may have",
    ),
    _limit(
        "jobs or job ids in a request",
        MAX_JOBS_PER_REQUEST,
        "count",
        "a large sweep; the client splits larger ones",
    ),
    _limit(
        "jobs in a dry run",
        MAX_DRY_RUN_JOBS,
        "count",
        "each asks the policy up to some hundred times",
    ),
    _limit("jobs with all details in an answer", MAX_STORIES, "count", "about 10 MB at most"),
    _limit("nodes in an action on nodes", MAX_NODES_PER_REQUEST, "count", "every node there is"),
    _limit("script", MAX_SCRIPT_BYTES, "bytes", "twice Slurm's max_script_size"),
    _limit("environment, names and values", MAX_ENVIRONMENT_BYTES, "bytes", "half of ARG_MAX"),
    _limit("variables in the environment", MAX_VARIABLES, "count", "a login shell has some 100"),
    _limit("arguments", MAX_ARGUMENTS, "count", "xargs passes about as many"),
    _limit("arguments together", MAX_ARGUMENT_BYTES, "bytes", "half of ARG_MAX"),
    _limit(
        "resource list, holds or training, as JSON",
        MAX_FIELD_BYTES,
        "bytes",
        "escaped; checked in jobs of more than 64 KiB before they are decoded",
    ),
    _limit("path", MAX_PATH, "characters", "PATH_MAX of Linux"),
    _limit(
        "name, account, queue, kind, client key, node or feature",
        MAX_WORD,
        "characters",
        "NAME_MAX of Linux: names become names of files",
    ),
    _limit(
        "message, reason, or any other text",
        MAX_MESSAGE,
        "characters",
        "it is kept once for each job that an action names",
    ),
    _limit("job id as written", MAX_ID, "characters", "a number and the name of a server"),
    _limit("recipients of a job's mail", MAX_RECIPIENTS, "count", "a mailing list holds more"),
    _limit("recipient of mail", MAX_RECIPIENT, "characters", "the longest address in RFC 5321"),
    _limit("mounts of a container", MAX_MOUNTS, "count", "each is a word of a command line"),
    _limit("nodes that a migration names", MAX_NAMED_NODES, "count", "each is looked up"),
    _limit("rates of a training", MAX_RATES, "count", "one for each number of GPUs"),
    _limit("list of an array's indices", MAX_ARRAY_TEXT, "characters", "1,000 ranges"),
    _limit(
        "ranges of an array's indices",
        MAX_ARRAY_SPANS,
        "count",
        "also the ranges that remain after single elements are deleted or held",
    ),
    _limit("lines of an array's elements, together", MAX_LINES_BYTES, "bytes", "as a script"),
    _limit("line of an element", MAX_LINE_BYTES, "bytes", "half of a variable's limit in Linux"),
    _limit(
        "lease",
        MAX_LEASE_S,
        "seconds",
        f"a week; and at least {MIN_LEASE_S} s, as a lost connection is noticed after some 15 s",
    ),
    _limit(
        "detach timeout of an interactive job",
        MAX_DETACH_TIMEOUT_S,
        "seconds",
        "30 days; a job that is to wait longer states none",
    ),
    _limit("texts of a resource list", MAX_RESOURCE_TEXTS, "count", "one for each -l"),
    _limit(
        "resource list",
        MAX_RESOURCE_TEXT,
        "characters",
        "256 host names of 63 characters; reading it takes about 2 ms",
    ),
    _limit(
        "terms of a resource list",
        MAX_RESOURCE_TERMS,
        "count",
        "consumable resources of a site, one by one",
    ),
    _limit(
        "term of a resource list without its value",
        MAX_RESOURCE_TERM,
        "characters",
        "an unknown name is compared with all known ones",
    ),
    _limit(
        "chunks of nodes= or select=",
        MAX_CHUNKS,
        "count",
        "each is placed by itself, in every scheduling cycle; equal ones are written as N:...",
    ),
    _limit("words of a chunk", MAX_CHUNK_WORDS, "count", "each feature is looked for on a node"),
    _limit("places of a request", MAX_PLACES, "count", "more than any cluster has nodes"),
    _limit(
        "wildcards in a pattern of names",
        MAX_PATTERN_WILDCARDS,
        "count",
        "each further one multiplies the steps of a comparison",
    ),
    _limit("past jobs in an answer", MAX_HISTORY_ROWS, "count", "about 30 MB, encoded in slices"),
)

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
        "name": MAX_WORD,
        "notify_url": MAX_MESSAGE,
        "python": MAX_PATH,
        "queue": MAX_WORD,
        "reason": MAX_MESSAGE,
        "requeue_on": MAX_WORD,
        "shell": MAX_PATH,
        "stderr_path": MAX_PATH,
        "stdout_path": MAX_PATH,
        "submit_dir": MAX_PATH,
        "urgency": MAX_WORD,
        "workdir": MAX_PATH,
    }
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
    """Check the length of a message's texts; ``fields`` are as `texts_of` gives them.

    Raises:
        InvalidRequestError: one is too long.
    """
    for name, most in fields:
        text = getattr(message, name)
        if text is not None and len(text) > most:
            raise InvalidRequestError(
                f"{name} has {len(text)} characters; the limit is {most}",
                hint="shorten it",
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
