"""Jobs and nodes as XML, JSON and DSV, as ``qstat`` and ``pbsnodes`` write them. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

import msgspec

from gsched.cli.pbs.attributes import Attribute, variables
from gsched.protocol.job_rows import JobStory

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,14})")
Values = dict[str, object]


def xml_element(name: str, value: str) -> str:
    """Return ``<name>value</name>``."""
    return f"<{name}>{escape(value)}</{name}>"


def jobs_xml(jobs: Iterable[tuple[str, Sequence[Attribute]]]) -> str:
    """Return Torque's document: one line behind the XML declaration, resources nested."""
    return f'<?xml version="1.0"?>\n<Data>{"".join(_job_xml(*job) for job in jobs)}</Data>\n'


def _job_xml(job_id: str, attributes: Sequence[Attribute]) -> str:
    parts = [xml_element("Job_Id", job_id)]
    group, inside = "", ""
    for each in attributes:
        value = each.value if each.epoch_s is None else str(int(each.epoch_s))
        if each.name != group and group:
            parts.append(f"<{group}>{inside}</{group}>")
            group, inside = "", ""
        if each.resource:
            group, inside = each.name, inside + xml_element(each.resource, value)
        else:
            parts.append(xml_element(each.name, value))
    if group:
        parts.append(f"<{group}>{inside}</{group}>")
    return f"<Job>{''.join(parts)}</Job>"


def jobs_json(
    jobs: Iterable[tuple[JobStory, Sequence[Attribute]]], *, server: str, version: str, now_s: float
) -> str:
    """Return OpenPBS's document of ``qstat -f -F json``."""
    document: Values = {"timestamp": int(now_s), "pbs_version": version, "pbs_server": server}
    found = {story.row.shown_id(server): _nested(story, each) for story, each in jobs}
    if found:
        document["Jobs"] = found
    return msgspec.json.format(msgspec.json.encode(document), indent=4).decode() + "\n"


def _nested(story: JobStory, attributes: Sequence[Attribute]) -> Values:
    """Return a job's attributes by name, resources below theirs, numbers as numbers."""
    values: Values = {}
    for each in attributes:
        if each.name == "Variable_List":
            values[each.name] = dict(variables(story))
        elif each.resource:
            inner = values.setdefault(each.name, {})
            assert isinstance(inner, dict)
            inner[each.resource] = _number_or_text(each.value)
        else:
            text = each.name in {"Job_Name", "Account_Name", "comment", "queue"}
            values[each.name] = each.value if text else _number_or_text(each.value)
    return values


def _number_or_text(value: str) -> int | str:
    return int(value) if _NUMBER.fullmatch(value) else value


def job_dsv(job_id: str, attributes: Iterable[Attribute], delimiter: str) -> str:
    """Return OpenPBS's line of ``qstat -f -F dsv``: ``Job Id: 1.head|Job_Name=train|…``."""
    fields = [f"Job Id: {job_id}"]
    fields += [f"{each.title}={_escaped(each.value, delimiter)}" for each in attributes]
    return delimiter.join(fields) + "\n"


def _escaped(value: str, delimiter: str) -> str:
    return value.replace("\\", "\\\\").replace(delimiter, f"\\{delimiter}")


def nodes_xml(nodes: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """Return ``pbsnodes -x``: no declaration, one line."""
    parts = [
        "<Node>"
        + xml_element("name", name)
        + "".join(xml_element(key, value) for key, value in attributes.items())
        + "</Node>"
        for name, attributes in nodes
    ]
    return f"<Data>{''.join(parts)}</Data>\n"
