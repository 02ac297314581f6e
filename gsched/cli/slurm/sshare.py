"""sshare: what projects and users have used and their fair shares, in Slurm's columns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gsched.cli.common import check_width, printable
from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.options import parsed
from gsched.client import HeadClient
from gsched.protocol.shares import StandingRow

_USUAL: Final = "Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"
_LONG: Final = (
    "Account,User,RawShares,NormShares,RawUsage,NormUsage,EffectvUsage,FairShare,LevelFS,"
    "GrpTRESMins,TRESRunMins"
)


class SshareField(NamedTuple):
    """A column: its title, its width (below 0: to the left), and the text of a row."""

    title: str
    width: int
    text: Callable[[StandingRow], str]


def _level_fs(row: StandingRow) -> str:
    if row.level_fs is not None:
        return f"{row.level_fs:.6f}"
    return "" if row.shares is None else "inf"


_FIELDS: Final[Mapping[str, SshareField]] = {
    field.title.lower(): field
    for field in (
        SshareField("Account", -20, lambda row: " " * (row.depth + bool(row.user)) + row.project),
        SshareField("Cluster", 10, lambda _: ""),
        SshareField("EffectvUsage", 13, lambda row: f"{row.effective_usage:.6f}"),
        SshareField(
            "FairShare", 10, lambda row: "" if row.fair_share is None else f"{row.fair_share:.6f}"
        ),
        SshareField("GrpTRESMins", 30, lambda _: ""),
        SshareField("GrpTRESRaw", 30, lambda _: ""),
        SshareField("ID", 6, lambda _: ""),
        SshareField("LevelFS", 10, _level_fs),
        SshareField("NormShares", 11, lambda row: f"{row.norm_shares:.6f}"),
        SshareField("NormUsage", 11, lambda row: f"{row.norm_usage:.6f}"),
        SshareField("Partition", 12, lambda _: ""),
        SshareField("RawShares", 10, lambda row: "" if row.shares is None else f"{row.shares:.0f}"),
        SshareField("RawUsage", 11, lambda row: f"{row.usage:.0f}"),
        SshareField("TRESRunMins", 30, lambda _: ""),
        SshareField("User", 10, lambda row: row.user),
    )
}


def sshare(words: Sequence[str]) -> int:
    """Print the tree of projects with the caller's shares, or with those of other users."""
    options, operands = parsed(words, "sshare")
    if operands:
        raise SlurmError(f"Unrecognized option: {operands[0]}", plain=True)
    if "helpformat" in options:
        print(" ".join(field.title for field in _FIELDS.values()))
        return 0
    fields = _chosen(options.get("format", _LONG if "long" in options else _USUAL))
    accounts, users = (
        set(options.get(name, "").split(",")) - {""} for name in ("accounts", "users")
    )
    if not users and "all" not in options:
        users = {w.own_name()}
    rows = [
        row
        for row in HeadClient().shares().rows
        if (not accounts or row.project in accounts)
        and (row.user in users or "all" in options if row.user else "Users" not in options)
    ]
    bare = bool({"parsable", "parsable2"} & set(options))
    lines = [[printable(field.text(row)) for field, _ in fields] for row in rows]
    if "noheader" not in options:
        rule = [] if bare else [["-" * abs(width) for _, width in fields]]
        lines = [[field.title for field, _ in fields], *rule, *lines]
    for line in lines:
        if bare:
            print("|".join(line) + ("|" if "parsable" in options else ""))
            continue
        cells = zip(line, (width for _, width in fields), strict=True)
        print("".join(w.fitted(text, abs(n), right=n > 0, mark="+") + " " for text, n in cells))
    return 0


def _chosen(text: str) -> list[tuple[SshareField, int]]:
    found = []
    for word in filter(None, text.split(",")):
        name, _, stated = word.strip().partition("%")
        field = _FIELDS.get(name.lower())
        if field is None:
            raise SlurmError(f'Invalid field requested: "{name}"')
        check_width(stated, "--format")
        is_width = stated.lstrip("-").isdecimal() and int(stated) != 0
        found.append((field, int(stated) if is_width else field.width))
    return found
