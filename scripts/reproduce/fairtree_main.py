"""Fair-share factors of the accounts and users of a file, by Fair Tree.

The file is a CSV table, one row for each account and each user of one: ``parent`` is the account
above ``account`` (empty: it is the root), ``user`` is empty in the account's own row, ``shares``
are a number or ``parent``, ``usage`` is in any unit. An account's usage includes that of users and
accounts below; if it is left out, it is their sum. Other columns of Slurm's table (norm_shares,
norm_usage, effective_usage, fair_share, level_fs) may be there and are not read.
"""

import argparse
import csv
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from gsched.errors import BadScriptError, GschedError
from gschedd.shares.tree import Association, ShareAccount, ShareTree, ShareUser, Standing

#: The columns that are read, and those that may be there.
READ: Final = ("parent", "account", "user", "shares", "usage")
KNOWN: Final = frozenset(
    {*READ, "norm_shares", "norm_usage", "effective_usage", "fair_share", "level_fs"}
)
#: An account's usage may be below the sum of what is in it by this part of it: digits are few.
ROUNDING: Final = 1e-6


class Row(Struct, frozen=True, kw_only=True):
    """A row of the file; ``shares`` None: ``parent``; ``usage`` None: not given."""

    line: int
    parent: str
    account: str
    user: str
    shares: float | None
    usage: float | None

    @property
    def key(self) -> Association:
        """Return what the row is about."""
        return self.account, self.user


class BadTableError(BadScriptError):
    """The file holds no share tree."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")


def rows_of(lines: Iterator[str]) -> list[Row]:
    """Return the rows of a table.

    Raises:
        BadTableError: it is not one.
    """
    table = csv.reader(lines, strict=True)
    try:
        names = next(table, [])
        missing = [name for name in READ if name not in names]
        if missing:
            raise BadTableError(1, f"no column {', '.join(missing)}; needed: {','.join(READ)}")
        strange = [name for name in names if name not in KNOWN or names.count(name) > 1]
        if strange:
            raise BadTableError(1, f"column {strange[0]!r} is unknown or given twice")
        return [_row(table.line_num, names, cells) for cells in table if cells]
    except csv.Error as error:
        raise BadTableError(table.line_num, str(error)) from None


def _row(line: int, names: Sequence[str], cells: Sequence[str]) -> Row:
    if len(cells) != len(names):
        raise BadTableError(line, f"{len(cells)} cells, and the header has {len(names)}")
    cell = dict(zip(names, (each.strip() for each in cells), strict=True))
    if not cell["account"]:
        raise BadTableError(line, "no account")
    is_root = not cell["parent"] and not cell["user"]
    shares: float | None = None
    if is_root and cell["shares"]:
        raise BadTableError(line, f"root account {cell['account']} competes with none: no shares")
    if not is_root and cell["shares"] != "parent":
        shares = _number(line, "shares", cell["shares"])
    usage = None if not cell["usage"] else _number(line, "usage", cell["usage"])
    if usage is None and cell["user"]:
        raise BadTableError(line, f"no usage of user {cell['user']}")
    return Row(
        line=line,
        parent=cell["parent"],
        account=cell["account"],
        user=cell["user"],
        shares=shares,
        usage=usage,
    )


def _number(line: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        allowed = "a number, 0 or more" + (", or parent" if name == "shares" else "")
        raise BadTableError(line, f"{name} {text!r}: write {allowed}")
    return value


def standings_of(rows: Sequence[Row]) -> dict[Association, Standing]:
    """Return how the accounts and users of a table stand.

    Raises:
        GschedError: they make no tree.
    """
    accounts = [row for row in rows if not row.user]
    users = [row for row in rows if row.user]
    tree = ShareTree(
        [ShareAccount(name=row.account, parent=row.parent, shares=row.shares) for row in accounts],
        [ShareUser(account=row.account, user=row.user, shares=row.shares) for row in users],
    )
    parents = {row.account: row.parent for row in accounts}
    for row in users:
        if row.parent != parents[row.account]:
            raise BadTableError(
                row.line,
                f"user {row.user} of account {row.account} has parent {row.parent or 'none'}, "
                f"and the account has {parents[row.account] or 'none'}",
            )
    return tree.standings(_usage(rows, parents))


def _usage(rows: Sequence[Row], parents: dict[str, str]) -> dict[Association, float]:
    """Return the usage of users, and of accounts what is not of users and accounts below."""
    within = dict.fromkeys(parents, 0.0)
    usage = {row.key: row.usage or 0.0 for row in rows if row.user}
    for (account, _), used in usage.items():
        within[account] += used
    below = dict.fromkeys(parents, 0)
    for parent in parents.values():
        if parent:
            below[parent] += 1
    given = {row.account: row for row in rows if not row.user}
    ready = [account for account, count in below.items() if not count]
    for account in ready:  # it grows meanwhile, from the leaves to the root
        row, parts, parent = given[account], within[account], parents[account]
        whole = parts if row.usage is None else row.usage
        if whole < parts * (1 - ROUNDING):
            raise BadTableError(
                row.line, f"account {account} has usage {whole:g}, and what is in it {parts:g}"
            )
        usage[account, ""] = max(0.0, whole - parts)
        if parent:
            within[parent] += whole
            below[parent] -= 1
            if not below[parent]:
                ready.append(parent)
    return usage


def table_of(rows: Sequence[Row]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of the result, in the order of the file."""
    standings = standings_of(rows)
    for row in rows:
        standing = standings[row.key]
        figures = (standing.fair_share, standing.level_fs)
        factor, level = ("" if value is None else f"{value:.6f}" for value in figures)
        yield row.account, row.user, factor, level


def main() -> int:
    """Print the factors, or what is wrong with the file."""
    parser = argparse.ArgumentParser(
        prog="fairtree",
        description="Prints account, user, fair_share and level_fs of each row of FILE, as CSV.",
        epilog="example: scripts/reproduce/fairtree ../shared/data/fairtree/slurm-35.csv",
    )
    parser.add_argument("file", type=Path, help="CSV table with " + ",".join(READ))
    arguments = parser.parse_args()
    path: Path = arguments.file
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
        found = list(table_of(rows_of(iter(lines))))
    except (OSError, UnicodeDecodeError) as error:
        print(f"fairtree: {path}: {error}", file=sys.stderr)
        return 66
    except GschedError as error:
        print(f"fairtree: {path}: {error.message}", file=sys.stderr)
        return BadTableError.exit_code
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("account", "user", "fair_share", "level_fs"))
    writer.writerows(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
