"""Resource lists as users write them after ``-l``, read into a `Request` and written back.

Understood are Torque's ``nodes=N[:ppn=P][:gpus=G[:mode]][:property]…[+…]``, OpenPBS's
``select=N:ncpus=C:ngpus=G:mem=M`` with ``place=``, the single terms ``ncpus procs gpus mem pmem
walltime``, and consumable resources that the site's nodes declare. ``mem`` is for the whole job and
is divided evenly over its places; consumable resources outside ``select`` are for each place.
``gpu_share=40%:16gb:low`` is a part of one GPU, see `gsched.model.gpu_share_text`.
"""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from gsched.errors import BadResourceError
from gsched.model.gpu_share_text import format_gpu_share, parse_gpu_share
from gsched.model.limits import (
    MAX_CHUNK_WORDS,
    MAX_CHUNKS,
    MAX_PLACES,
    MAX_RESOURCE_TERM,
    MAX_RESOURCE_TERMS,
    MAX_RESOURCE_TEXT,
    MAX_RESOURCE_TEXTS,
    MAX_WORD,
    SHOWN,
    shown,
)
from gsched.model.resources import Chunk, Generic, Request
from gsched.model.states import Placement, ShareClass
from gsched.model.units import (
    exact_size,
    format_duration,
    parse_duration_s,
    parse_size_bytes,
)

GPU_MODES: Final = frozenset(
    {"shared", "default", "exclusive", "exclusive_thread", "exclusive_process", "reseterr"}
)
SINGLE_TERMS: Final = frozenset(
    {"nodes", "select", "place", "ncpus", "procs", "gpus", "ngpus", "gpu_share"}
    | {"mem", "pmem", "walltime"}
)
#: Torque's limits that gsched reads and does not enforce; the user is told.
UNENFORCED_TERMS: Final = frozenset(
    {"vmem", "pvmem", "cput", "pcput", "file", "nice", "naccesspolicy", "wd"}
)
#: A plain number below this is a typing error: a unit was forgotten.
LEAST_PLAIN_BYTES: Final = 1024**2
_PROPERTY: Final = re.compile(r"[A-Za-z][\w.-]*")
_NO_PROPERTY: Final = GPU_MODES | {"prohibited"}
#: Of ``select=``: attributes with a number, by the name under which it counts.
_CHUNK_COUNTS: Final[Mapping[str, str]] = {
    **{name: name for name in ("ncpus", "mpiprocs", "ompthreads", "ngpus")},
    "gpus": "ngpus",
}
_COUNTED_WORDS: Final = ("ppn", "gpus", "gpu_type")  # of nodes=, with a value


class ResourceList(Struct, frozen=True, kw_only=True):
    """What a resource list says.

    ``walltime_s`` is None where no walltime is named; ``walltime_change_s`` is set instead by
    ``walltime=+1:00:00`` or ``-…`` (galter).
    """

    request: Request
    walltime_s: float | None
    walltime_change_s: float | None
    warnings: tuple[str, ...]


def parse_resources(
    texts: Sequence[str],
    *,
    generic_names: Collection[str],
    warn_unknown: bool = False,
    exclusive: bool = False,
    so_far: str = "",
) -> ResourceList:
    """Read the texts given after ``-l``, later ones winning over earlier ones.

    Args:
        texts: each a comma-separated list of terms.
        generic_names: consumable resources that some node declares.
        warn_unknown: put unknown terms into the warnings instead of refusing them.
        exclusive: the job wants its nodes for itself.
        so_far: what the job requests already, as `format_resources` gives it: read first, and not
            counted as part of what its user wrote.

    Raises:
        BadResourceError: a term that is unknown, unreadable or contradicts another, or a list that
            is too long.
    """
    check_length(texts)
    terms: dict[str, str] = {}
    warnings: list[str] = []
    for item in filter(
        None, (part.strip() for text in (so_far, *texts) for part in text.split(","))
    ):
        name, equals, value = (part.strip() for part in item.partition("="))
        if name in UNENFORCED_TERMS:
            warnings.append(f"resource {name} is understood but not enforced")
        elif name not in SINGLE_TERMS and name not in generic_names:
            message = _unknown(name, generic_names)
            if "gpu_share" in terms and (name in {*ShareClass} or name[:1].isdecimal()):
                share = f"gpu_share={terms['gpu_share']}:{name}"
                message = (message[0], f"within a resource write colons: {share}")
            if not warn_unknown:
                raise BadResourceError(message[0], hint=message[1])
            warnings.append(message[0] + ": ignored")
        elif not equals or not value:
            raise BadResourceError(f"resource {name} has no value", hint=f"write {name}=VALUE")
        else:
            terms[name] = value
    walltime_s, change_s = _walltime(terms.pop("walltime", None))
    request = _request(terms, generic_names, warnings if warn_unknown else None)
    if exclusive:
        request = structs.replace(request, exclusive=True)
    if request.exclusive and request.gpu_share is not None:
        raise BadResourceError(
            "a job that shares a GPU cannot have its node for itself",
            hint="omit --exclusive, place=excl or -n, or request whole GPUs",
        )
    return ResourceList(
        request=request,
        walltime_s=walltime_s,
        walltime_change_s=change_s,
        warnings=tuple(warnings),
    )


def check_length(texts: Sequence[str]) -> None:
    """Check how long a resource list is, before anything of it is read.

    Raises:
        BadResourceError: it is too long.
    """
    length = sum(map(len, texts))
    terms = sum(text.count(",") + 1 for text in texts[:MAX_RESOURCE_TEXTS])
    if terms > MAX_RESOURCE_TERMS and length <= MAX_RESOURCE_TEXT:
        raise BadResourceError(
            f"the resource list has {terms} terms; the limit is {MAX_RESOURCE_TERMS}",
            hint="name each resource once",
        )
    if len(texts) > MAX_RESOURCE_TEXTS or length > MAX_RESOURCE_TEXT:
        raise BadResourceError(
            f"the resource list has {length} characters in {len(texts)} texts; "
            f"the limit is {MAX_RESOURCE_TEXT} characters in {MAX_RESOURCE_TEXTS} texts",
            hint="combine equal chunks, as in nodes=8:gpus=1",
        )


def _unknown(name: str, generic_names: Collection[str]) -> tuple[str, str]:
    if len(name) > MAX_RESOURCE_TERM:
        return f"unknown resource {shown(name)}", "see RESOURCES in gsub(1)"
    close = difflib.get_close_matches(name, [*SINGLE_TERMS, *generic_names], n=1)
    known = ", ".join(sorted([*SINGLE_TERMS, *generic_names]))
    hint = f"did you mean {close[0]!r}?" if close else f"valid resources: {known}"
    return f"unknown resource {name!r}", hint


def _walltime(value: str | None) -> tuple[float | None, float | None]:
    if value is None:
        return None, None
    if (value[0] in "+-" and ":" in value) or value.startswith("+"):
        sign = -1 if value[0] == "-" else 1
        try:
            return None, sign * parse_duration_s(value[1:])
        except BadResourceError as error:
            raise BadResourceError(
                f"walltime={_short(value)}: {error.message}", hint=error.hint
            ) from None
    try:
        return parse_duration_s(value), None
    except BadResourceError as error:
        raise BadResourceError(
            f"walltime={_short(value)}: {error.message}", hint=error.hint
        ) from None


def _request(
    terms: dict[str, str], generic_names: Collection[str], unknown: list[str] | None
) -> Request:
    """Return what the terms ask for; unknown attributes of chunks go to ``unknown``, if given."""
    if "nodes" in terms and "select" in terms:
        raise BadResourceError("nodes= and select= are mutually exclusive", hint="give one of them")
    generic: Generic = tuple(
        sorted((name, _count(name, terms[name])) for name in terms if name in generic_names)
    )
    if "select" in terms:
        _check_beside_select(terms)
        texts = _chunk_texts("select", terms["select"])
        chunks = tuple(_select_chunk(text, generic_names, unknown) for text in texts)
        placement = Placement.FREE
    else:
        chunks, placement = _plain_chunks(terms)
    arrangement, exclusive = _place(terms["place"]) if "place" in terms else (None, False)
    placement = arrangement or placement
    places = sum(chunk.count for chunk in chunks)
    if places > MAX_PLACES:
        raise BadResourceError(f"more than {MAX_PLACES} chunks requested", hint="request fewer")
    totals = _totals(terms, places, generic)
    chunks = tuple(_with_totals(chunk, totals) for chunk in chunks)
    if "gpu_share" in terms:
        chunks, placement = (_sharing(chunks, terms["gpu_share"]),), Placement.SCATTER
    return Request(chunks=chunks, placement=placement, exclusive=exclusive)


def _sharing(chunks: tuple[Chunk, ...], text: str) -> Chunk:
    """Return the one chunk of a request with a share of a GPU.

    Raises:
        BadResourceError: it cannot be read, or asks for more than one chunk or GPU.
    """
    chunk, share = chunks[0], parse_gpu_share(text)
    if len(chunks) > 1 or chunk.count > 1:
        raise BadResourceError(
            "gpu_share= is for one chunk: processes that wait for each other on shared GPUs "
            "can block each other",
            hint="request whole GPUs, with nodes=N:gpus=G, or submit one job for each share",
        )
    if chunk.gpus > 1:
        raise BadResourceError(
            f"gpu_share= is a part of one GPU, not of {chunk.gpus}",
            hint="omit gpus= beside gpu_share=, or request whole GPUs",
        )
    return structs.replace(chunk, gpus=0, gpu_share=share)


def _check_beside_select(terms: Mapping[str, str]) -> None:
    """Refuse counts beside ``select=``, whose chunks say how much of everything each has.

    Raises:
        BadResourceError: there is one; it would have no effect.
    """
    words = {"ncpus": "ncpus", "procs": "ncpus", "gpus": "ngpus", "ngpus": "ngpus"}
    for name in terms:
        if name in words:
            raise BadResourceError(
                f"{name}={_short(terms[name])} cannot be combined with select=",
                hint=f"put it into each chunk: select=N:{words[name]}={_short(terms[name])}",
            )


def _plain_chunks(terms: dict[str, str]) -> tuple[tuple[Chunk, ...], Placement]:
    gpus = _count("gpus", terms["gpus"]) if "gpus" in terms else None
    if "ngpus" in terms:
        gpus = _count("ngpus", terms["ngpus"])
    if "nodes" in terms:
        if "ncpus" in terms or "procs" in terms:
            raise BadResourceError(
                "nodes= cannot be combined with ncpus= or procs=", hint="write nodes=N:ppn=CPUS"
            )
        chunks = tuple(_nodes_chunk(text) for text in _chunk_texts("nodes", terms["nodes"]))
        if gpus is not None:
            if any(chunk.gpus for chunk in chunks):
                raise BadResourceError(
                    "GPUs are requested twice", hint="write nodes=N:gpus=G or gpus=G, not both"
                )
            chunks = tuple(structs.replace(chunk, gpus=gpus) for chunk in chunks)
        return chunks, Placement.SCATTER
    if "procs" in terms:
        if "ncpus" in terms or gpus:
            raise BadResourceError(
                "procs= cannot be combined with other CPU or GPU counts",
                hint="write nodes=N:ppn=P:gpus=G",
            )
        return (Chunk(count=_count("procs", terms["procs"]), cpus=1),), Placement.FREE
    cpus = _count("ncpus", terms["ncpus"]) if "ncpus" in terms else 1
    return (Chunk(cpus=cpus, gpus=gpus or 0),), Placement.SCATTER


def _chunk_texts(verb: str, value: str) -> list[str]:
    """Return the texts of the chunks of ``nodes=`` or ``select=``.

    Raises:
        BadResourceError: there are too many, or one has too many words.
    """
    count = value.count("+") + 1
    if count > MAX_CHUNKS:
        raise BadResourceError(
            f"{verb}= has {count} chunks; the limit is {MAX_CHUNKS}",
            hint=f"combine equal chunks, as in {verb}=8:...",
        )
    texts = value.split("+")
    for text in texts:
        if text.count(":") >= MAX_CHUNK_WORDS:
            raise BadResourceError(
                f"{verb}={_short(text)}: {text.count(':') + 1} words in one chunk; "
                f"the limit is {MAX_CHUNK_WORDS}"
            )
    return texts


def _nodes_chunk(text: str) -> Chunk:
    count, cpus, gpus, gpu_type = 1, 1, 0, ""
    features: list[str] = []
    for position, word in enumerate(part.strip() for part in text.split(":")):
        name, equals, value = word.partition("=")
        if position == 0 and re.fullmatch(r"-?[0-9]+", word):
            count = _count("nodes", word)
        elif equals and name == "ppn":
            cpus = _count("ppn", value)
        elif equals and name == "gpus":
            gpus = _count("gpus", value, least=0)
        elif equals and name == "gpu_type":
            gpu_type = _word(name, value)
        elif word not in GPU_MODES:
            features.append(_property(text, word))
    return Chunk(
        count=count, cpus=cpus, gpus=gpus, gpu_type=gpu_type, features=tuple(sorted(set(features)))
    )


def _property(text: str, word: str) -> str:
    """Return a word of ``nodes=`` that names a host or a feature; refuse all others."""
    name, equals, _ = word.partition("=")
    form = "write nodes=N:ppn=P:gpus=G:FEATURE"
    if word == "prohibited":
        raise BadResourceError("GPU mode 'prohibited' does not let any job run", hint="omit it")
    if word in _COUNTED_WORDS:
        raise BadResourceError(f"nodes={_short(text)}: {word} has no value", hint=form)
    if equals:
        raise BadResourceError(
            f"nodes={_short(text)}: unknown node attribute {shown(name)}",
            hint=_attribute_hint(name),
        )
    if len(word) > MAX_WORD or not _PROPERTY.fullmatch(word):
        raise BadResourceError(
            f"nodes={_short(text)}: invalid node count, host or feature {shown(word)}",
            hint=form,
        )
    return word


def _attribute_hint(name: str) -> str:
    """Return what to write instead of an unknown ``NAME=VALUE`` of ``nodes=``."""
    close = difflib.get_close_matches(name[:MAX_RESOURCE_TERM], _COUNTED_WORDS, n=1)
    valid = "ppn=P, gpus=G, gpu_type=TYPE, or a feature name as a bare word"
    return (f"did you mean {close[0]!r}? " if close else "") + f"valid: {valid}"


def _select_chunk(text: str, generic_names: Collection[str], unknown: list[str] | None) -> Chunk:
    count, gpu_type, memory_bytes = 1, "", 0
    counts = {"ncpus": 1, "mpiprocs": 1, "ompthreads": 0, "ngpus": 0}
    features: list[str] = []
    generic: list[tuple[str, int]] = []
    for position, word in enumerate(part.strip() for part in text.split(":")):
        name, equals, value = word.partition("=")
        if position == 0 and re.fullmatch(r"-?[0-9]+", word):
            count = _count("select", word)
        elif name in _CHUNK_COUNTS and equals:
            target = _CHUNK_COUNTS[name]
            counts[target] = _count(name, value, least=0 if target == "ngpus" else 1)
        elif name in {"gpu_type", "gpu_model"} and equals:
            gpu_type = _word(name, value)
        elif name == "mem" and equals:
            memory_bytes = _size(name, value)
        elif name in {"host", "vnode"} and equals:
            features.append(_word(name, value))
        elif name in generic_names and equals:
            generic.append((name, _count(name, value)))
        elif equals and unknown is not None:
            unknown.append(f"unknown chunk attribute {shown(name)}: ignored")
        else:
            raise BadResourceError(
                f"select={_short(text)}: unknown chunk attribute {shown(word)}",
                hint="write select=N:ncpus=C:ngpus=G:mem=M",
            )
    cpus, ranks = counts["ncpus"], counts["mpiprocs"]
    threads = counts["ompthreads"] or max(1, cpus // ranks)
    return Chunk(
        count=count,
        cpus=cpus,
        gpus=counts["ngpus"],
        gpu_type=gpu_type,
        memory_bytes=memory_bytes,
        features=tuple(sorted(set(features))),
        generic=tuple(sorted(generic)),
        ranks=0 if ranks == cpus else ranks,
        threads=0 if threads == cpus else threads,
    )


def _place(text: str) -> tuple[Placement | None, bool]:
    """Return the arrangement, or None where only the sharing is named, and whether exclusive."""
    arrangements = {
        "free": Placement.FREE,
        "pack": Placement.PACK,
        "scatter": Placement.SCATTER,
        "vscatter": Placement.SCATTER,
    }
    placement, exclusive = None, False
    for word in text.split(":"):
        if word in {"excl", "exclhost"}:
            exclusive = True
        elif word in arrangements:
            placement = arrangements[word]
        elif word != "shared":
            raise BadResourceError(
                f"place={_short(text)}: unknown placement {shown(word)}",
                hint="valid: free, pack, scatter, excl",
            )
    return placement, exclusive


class _Totals(Struct, frozen=True, kw_only=True):
    """What is said of all places at once; None where nothing is."""

    cpu_memory_bytes: int | None
    place_memory_bytes: int | None
    generic: Generic


def _totals(terms: dict[str, str], places: int, generic: Generic) -> _Totals:
    return _Totals(
        cpu_memory_bytes=_size("pmem", terms["pmem"]) if "pmem" in terms else None,
        place_memory_bytes=-(-_size("mem", terms["mem"]) // places) if "mem" in terms else None,
        generic=generic,
    )


def _with_totals(chunk: Chunk, totals: _Totals) -> Chunk:
    memory_bytes = chunk.memory_bytes
    if totals.cpu_memory_bytes is not None:
        memory_bytes = totals.cpu_memory_bytes * chunk.cpus
    if totals.place_memory_bytes is not None:
        memory_bytes = totals.place_memory_bytes
    return structs.replace(
        chunk,
        memory_bytes=memory_bytes,
        generic=tuple(sorted({**dict(totals.generic), **dict(chunk.generic)}.items())),
    )


def _word(name: str, value: str) -> str:
    if len(value) > MAX_WORD:
        raise BadResourceError(
            f"{name}={_short(value)} has {len(value)} characters; the limit is {MAX_WORD}"
        )
    return value


def _short(text: str) -> str:
    """Return what an error shows of a text, without quotes: all of it, or its beginning."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _size(name: str, text: str) -> int:
    try:
        size_bytes = parse_size_bytes(text)
    except BadResourceError as error:
        raise BadResourceError(f"{name}={_short(text)}: {error.message}", hint=error.hint) from None
    if 0 < size_bytes < LEAST_PLAIN_BYTES and text.isdecimal():
        raise BadResourceError(
            f"{name}={text} requests {size_bytes} bytes, too little for any program",
            hint=f"did you mean {name}={text}mb? (a number without a unit is in bytes)",
        )
    return size_bytes


def _count(name: str, text: str, *, least: int = 1) -> int:
    if re.fullmatch(r"[0-9]{10,}", text):
        raise BadResourceError(f"{name}={_short(text)}: must be at most 999999999")
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise BadResourceError(f"{name}={_short(text)}: must be a whole number")
    if int(text) < least:
        raise BadResourceError(f"{name}={text}: must be at least {least}")
    return int(text)


def format_resources(request: Request, walltime_s: float | None) -> str:
    """Return the request in PBS words, such as a user could give after ``-l``.

    Reading them gives the same request again; a fraction of a second of walltime is lost.
    """
    verb = "nodes" if _is_plain(request) else "select"
    usual = Placement.SCATTER if verb == "nodes" else Placement.FREE
    terms = [verb + "=" + "+".join(_format_chunk(chunk, verb) for chunk in request.chunks)]
    words = [request.placement.value] if request.placement is not usual else []
    words += ["excl"] if request.exclusive else []
    if words:
        terms.append("place=" + ":".join(words))
    if verb == "nodes" and request.memory_bytes:
        terms.append(f"mem={exact_size(request.memory_bytes)}")
    if verb == "nodes":
        terms.extend(f"{name}={count}" for name, count in request.chunks[0].generic)
    if request.gpu_share is not None:
        terms.append(f"gpu_share={format_gpu_share(request.gpu_share)}")
    if walltime_s is not None:
        terms.append(f"walltime={format_duration(walltime_s)}")
    return ",".join(terms)


def _is_plain(request: Request) -> bool:
    """Return whether ``nodes=`` can say it: it knows no memory or counts of single places."""
    first = request.chunks[0]
    return request.placement is Placement.SCATTER and all(
        (chunk.memory_bytes, chunk.generic) == (first.memory_bytes, first.generic)
        and not (chunk.ranks or chunk.threads)
        and all(_PROPERTY.fullmatch(word) and word not in _NO_PROPERTY for word in chunk.features)
        for chunk in request.chunks
    )


def _rank_words(chunk: Chunk) -> Iterator[str]:
    """Yield what ``select=`` says of ranks and threads: by default one rank with all CPUs."""
    ranks, threads = chunk.ranks or chunk.cpus, chunk.threads or chunk.cpus
    if ranks != 1:
        yield f"mpiprocs={ranks}"
    if threads != max(1, chunk.cpus // ranks):
        yield f"ompthreads={threads}"


def _format_chunk(chunk: Chunk, verb: str) -> str:
    words = [str(chunk.count)]
    words.append(f"ppn={chunk.cpus}" if verb == "nodes" else f"ncpus={chunk.cpus}")
    if chunk.gpus:
        words.append(f"gpus={chunk.gpus}" if verb == "nodes" else f"ngpus={chunk.gpus}")
    if chunk.gpu_type:
        words.append(f"gpu_type={chunk.gpu_type}")
    if verb == "select":
        words.extend(_rank_words(chunk))
        words.extend([f"mem={exact_size(chunk.memory_bytes)}"] if chunk.memory_bytes else [])
        words.extend(f"{name}={count}" for name, count in chunk.generic)
        words.extend(f"host={feature}" for feature in chunk.features)
    else:
        words.extend(chunk.features)
    return ":".join(words)
