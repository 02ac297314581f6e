"""``-m`` and ``-M``: when mail about a job is sent, and to whom. Pure; commands and head use it."""

from typing import Final

from gsched.errors import InvalidRequestError
from gsched.model.limits import MAX_RECIPIENT, MAX_RECIPIENTS
from gsched.model.patterns import pattern

#: b: it begins; e: it ends; a: it is aborted; f: it fails; j: each element of an array by itself.
POINTS: Final = frozenset("abefj")
NEVER: Final = frozenset("np")
#: A local part or an address. Nothing in it ends a line of a header, or begins an option.
_RECIPIENT: Final = pattern(
    r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,63}(?:@(?P<domain>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?))?"
)
#: Values of Slurm's ``--mail-type``, as letters.
_SLURM: Final = {
    "NONE": "n",
    "BEGIN": "b",
    "END": "e",
    "FAIL": "af",
    "ALL": "abef",
    "INVALID_DEPEND": "a",
    "TIME_LIMIT": "a",
    "ARRAY_TASKS": "j",
}


def checked_points(stated: str) -> str:
    """Return the letters of ``-m``, each once, in the order of the alphabet; empty: none is stated.

    Raises:
        InvalidRequestError: an unknown letter, ``n`` or ``p`` beside others, or ``j`` alone.
    """
    letters = set(stated.replace(",", ""))
    if letters - POINTS - NEVER or (len(letters) > 1 and NEVER & letters) or letters == {"j"}:
        raise InvalidRequestError(
            f"-m: invalid mail points {stated!r}",
            hint="use letters of a (abort), b (begin), e (end), f (failure), with j for each "
            "element of an array, or n alone",
        )
    return "".join(sorted(letters))


def wants_mail(points: str, recipients: str) -> bool:
    """Return whether a job requests mail; ``-M`` alone asks for it when the job is aborted."""
    return bool(recipients) if not points else not NEVER & set(points)


def checked_recipients(stated: str, *, option: str = "-M") -> tuple[str, ...]:
    """Return the recipients of an option, each once, in their order.

    Raises:
        InvalidRequestError: too many, or one that is no mail address and no local name.
    """
    names = tuple(dict.fromkeys(filter(None, (part.strip() for part in stated.split(",")))))
    if len(names) > MAX_RECIPIENTS:
        raise InvalidRequestError(
            f"{option}: {len(names)} recipients; the limit is {MAX_RECIPIENTS}",
            hint="use a mailing list",
        )
    for name in names:
        if len(name) > MAX_RECIPIENT or not _RECIPIENT.fullmatch(name):
            raise InvalidRequestError(
                f"{option}: invalid recipient {name[:80]!r}",
                hint="write USER or USER@HOST, several with commas between them",
            )
    return names


def domain_of(recipient: str) -> str:
    """Return the part behind ``@`` in lower case; empty: there is none."""
    return recipient.partition("@")[2].lower()


def points_of_slurm(types: str) -> tuple[str, list[str]]:
    """Return the letters for ``--mail-type=END,FAIL``, and the types that have no letter."""
    letters: set[str] = set()
    unknown: list[str] = []
    for name in filter(None, (part.strip().upper() for part in types.split(","))):
        if name in _SLURM:
            letters |= set(_SLURM[name])
        else:
            unknown.append(name)
    if len(letters) > 1:
        letters -= NEVER
    if letters == {"j"}:
        letters = set()
    return "".join(sorted(letters)), unknown
