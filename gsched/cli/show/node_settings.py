"""Lists the settings of nodes: ``gnodes settings``."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import structs

from gsched.cli.common import print_json, printable, report_errors
from gsched.cli.local.toml import value_text
from gsched.cli.times import format_time
from gsched.client import HeadClient
from gsched.errors import GschedError, HeadUnreachableError, NotPermittedError, UsageError
from gsched.head_calls import body_of
from gsched.model.configuration import SettingRow
from gsched.protocol.api import ErrorBody
from gsched.protocol.settings import NodeSettingsReply


def show_settings(head: HeadClient, names: Sequence[str], *, as_json: bool) -> int:
    """Show with which settings nodes run; return the exit code.

    Raises:
        GschedError: no node is named, or none can be asked.
    """
    if not names:
        raise UsageError("settings needs at least one node", hint="gnodes settings NODE...")
    replies: list[NodeSettingsReply] = []
    errors: list[tuple[str, ErrorBody]] = []
    for name in dict.fromkeys(names):
        try:
            replies.append(head.node_settings(name))
        except (HeadUnreachableError, NotPermittedError):
            raise
        except GschedError as error:
            errors.append((name, body_of(error)))
    if as_json:
        print_json({"nodes": [_with_values(reply) for reply in replies]})
    else:
        for number, reply in enumerate(replies):
            print("\n" * (number > 0) + "\n".join(printable(line) for line in _lines(reply)))
    return report_errors(errors, as_json=as_json)


def _with_values(reply: NodeSettingsReply) -> dict[str, object]:
    """Return a reply with values as they are, not as texts of JSON."""
    rows = [
        {
            "table": row.table,
            "key": row.key,
            "value": _read(row.value),
            "origin": row.origin,
            "pending": _read(row.pending),
            "restart": bool(row.pending),
            "unused": row.unused,
        }
        for row in reply.settings
    ]
    return {**structs.asdict(reply), "settings": rows}


def _read(text: str) -> object:
    try:
        return json.loads(text) if text else None
    except ValueError:  # a value of another version, or one that was cut off
        return text


def _lines(reply: NodeSettingsReply) -> Iterator[str]:
    state = reply.state
    yield f"# {reply.node}; its own file: {reply.path}"
    if state.problem:
        yield f"# settings of the head refused at {format_time(state.problem_s)}: {state.problem}"
    elif state.digest == reply.head:
        yield f"# settings of the head: received at {format_time(state.received_s)}"
    else:
        yield "# settings of the head: it does not have the present ones yet"
    for table, rows in groupby(reply.settings, key=lambda row: row.table):
        name = re.sub(r"\[\d+\]", "", table)
        yield ""
        yield f"[[{name}]]" if table.endswith("]") else f"[{name}]"
        for row in rows:
            yield f"{row.key} = {_value(row.value)}  # {_source(row)}"


def _source(row: SettingRow) -> str:
    origin = {"default": "default", "head": "of the head", "own": "of its own file"}[row.origin]
    if row.unused:
        origin += f"; not used: {row.unused}"
    if not row.pending:
        return origin
    wanted = "removed" if row.pending == "null" else _value(row.pending)
    return f"{origin}; {wanted} after a restart of gnode"


def _value(text: str) -> str:
    """Return a value as a configuration file writes it; a node has sent it."""
    value = _read(text)
    return "(none yet)" if value is None else value_text(value)
