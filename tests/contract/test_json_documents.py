"""The documents of --json are what programs read: their fields are recorded, with their types.

A field may be added. One that goes away or changes its type breaks programs: JSON_SCHEMA grows.
Record them again with ``python -m tests.contract.test_json_documents``.
"""

import json
from pathlib import Path

import msgspec

from gsched.cli.common import JSON_SCHEMA, MOMENTS
from gsched.protocol.api import ActionReply
from gsched.protocol.job_rows import HistoryReply, JobList, JobRow
from gsched.protocol.node_rows import NodeList
from gsched.protocol.predictions import NodePredictions, PredictionsReply
from gsched.protocol.stories import JobStories

RECORD = Path(__file__).parents[1] / "golden" / "json_documents.json"
DOCUMENTS = {
    "gstat --json": JobList,
    "gstat -f --json": JobStories,
    "ghist --json": HistoryReply,
    "ghist --predictions --json": PredictionsReply,
    "gnodes --json": NodeList,
    "gnodes --predictions --json": NodePredictions,
    "gdel --json": ActionReply,
}


def fields_of(kind: type) -> dict[str, str]:
    """Return the fields of a document by their paths, with their types."""
    found: dict[str, str] = {}
    _add(found, "", kind, ())
    return dict(sorted(found.items()))


def _add(found: dict[str, str], path: str, kind: object, inside: tuple[object, ...]) -> None:
    if kind in inside:
        return
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            name = f"{path}.{field.name}".lstrip(".")
            found[name] = _name(field.type)
            if field.name in MOMENTS:
                found[f"{name[:-2]}_iso"] = "str | None"
            for inner in _parts(field.type):
                _add(found, name, inner, (*inside, kind))
        if kind is JobRow:
            found[f"{path}.job_id".lstrip(".")] = "str"


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)


def _parts(kind: object) -> list[object]:
    """Return a type and what it is made of."""
    parts = [kind]
    for inner in getattr(kind, "__args__", ()):
        parts += _parts(inner)
    return parts


def recorded() -> dict[str, object]:
    return {"schema": JSON_SCHEMA, **{name: fields_of(kind) for name, kind in DOCUMENTS.items()}}


def test_no_field_of_a_document_has_gone_or_changed_its_type() -> None:
    before = json.loads(RECORD.read_text(encoding="utf-8"))
    assert before["schema"] == JSON_SCHEMA, (
        "record them: python -m tests.contract.test_json_documents"
    )
    for name, kind in DOCUMENTS.items():
        fields = fields_of(kind)
        lost = {path: was for path, was in before[name].items() if fields.get(path) != was}
        assert not lost, f"{name}: gone or changed: JSON_SCHEMA has to grow"


if __name__ == "__main__":
    RECORD.write_text(json.dumps(recorded(), indent=1) + "\n", encoding="utf-8")
