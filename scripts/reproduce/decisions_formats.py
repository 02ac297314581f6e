"""What goes over the wire and into the database: fields of all messages, and the schema."""

import json
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Final, cast

import msgspec

from gnode.core.task import AcceptedTask
from gnode.task import SupervisorInfo
from gsched.model.job import ExitRecord, JobSpec, Outcome
from gsched.protocol import node as n
from gsched.protocol import training as t
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, Node, SparseFields
from gschedd.http.schema import document
from gschedd.store.sqlite import Store

Schema = Mapping[str, object]
#: Fields with their types, by message, or by where a part of messages stands first.
Fields = dict[str, dict[str, str]]

#: What is written to disk as JSON beside facts, by its column or file.
STORED: Final[Mapping[str, object]] = MappingProxyType(
    {
        "specs.spec": JobSpec,
        "jobs.outcome_data": Outcome,
        "jobs.sparse": SparseFields,
        "attempts.data": Attempt,
        "nodes.data": Node,
        "task.json": AcceptedTask,
        "journal started": SupervisorInfo,
        "journal ended": ExitRecord,
    }
)
_LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "minimum": ">=",
        "maximum": "<=",
        "exclusiveMinimum": ">",
        "exclusiveMaximum": "<",
        "minLength": "length >=",
        "maxLength": "length <=",
    }
)


def api_fields() -> Fields:
    """Return the fields of the API's requests and replies, by route, as the head publishes them."""
    published = cast("dict[str, dict[str, dict[str, Schema]]]", document())
    roots: dict[str, Schema] = {}
    for path, methods in published["paths"].items():
        for method, operation in methods.items():
            responses = cast("Mapping[str, Schema]", operation["responses"])
            roots[f"{method.upper()} {path}"] = _content(responses["200"])
            if "requestBody" in operation:
                asked = cast("Schema", operation["requestBody"])
                roots[f"{method.upper()} {path} body"] = _content(asked)
            roots["error"] = _content(responses["default"])
    return _Written(published["components"]["schemas"]).fields_of(roots)


def _content(part: Schema) -> Schema:
    content = cast("Mapping[str, Mapping[str, Schema]]", part["content"])
    return content["application/json"]["schema"]


def wire_fields() -> Fields:
    """Return the fields of what head and nodes, and nodes and training jobs, say to each other."""
    order = n.TakeCheckpoint(job=1, attempt=1, request=2, world_size=4)
    go_on = n.GoOn(job=1, attempt=1, request=2)
    said = {
        "versions": {"node channel": str(n.PROTOCOL_VERSION), "training_jobs": str(t.VERSION)},
        "node to training": {
            "checkpoint": t.encode_order(order).decode(),
            "go on": t.encode_order(go_on).decode(),
            "refused": t.encode_refusal("why").decode(),
        },
    }
    unions = {"to node:": n.HeadMessage, "to head:": n.NodeMessage}
    return said | fields_of_types({"training to node": t.TrainingLine}, unions)


def stored_fields() -> Fields:
    """Return the fields of what is kept as JSON in the database and on nodes."""
    return fields_of_types(STORED, {"fact": f.AnyFact})


def fields_of_types(
    types: Mapping[str, object], unions: Mapping[str, object] = MappingProxyType({})
) -> Fields:
    """Return the fields of records by the names that they are given, and of all that they hold.

    Each member of a union is named by the name of the union and its own tag.
    """
    schemas, components = msgspec.json.schema_components((*unions.values(), *types.values()))
    roots = dict(zip(types, schemas[len(unions) :], strict=True))
    for name, union in zip(unions, schemas, strict=False):
        roots |= {f"{name} {tag}": schema for tag, schema in _tagged(union).items()}
    return _Written(components).fields_of(roots)


def _tagged(union: Schema) -> dict[str, Schema]:
    """Return the members of a union of messages by their tags."""
    mapping = cast("Mapping[str, Mapping[str, str]]", union["discriminator"])["mapping"]
    return {tag: {"$ref": target} for tag, target in sorted(mapping.items())}


class _Written:
    """Writes types down by the names that they have on the wire, not by those of classes.

    A part of messages is named after the place where it stands first, as in ``GET /v1/jobs.jobs``,
    so that a class may be renamed, and one that is moved, split or joined shows as what it changes.
    """

    def __init__(self, components: Mapping[str, Schema]) -> None:
        self._components = components
        self._names: dict[str, str] = {}
        self._found: Fields = {}

    def fields_of(self, roots: Mapping[str, Schema]) -> Fields:
        """Return the fields of some messages, and of all that they hold.

        Members of a union are messages, too, named by its name and their own tag.
        """
        unions = {name: schema for name, schema in roots.items() if "discriminator" in schema}
        every = {name: schema for name, schema in roots.items() if name not in unions}
        for name, union in unions.items():
            every |= {f"{name}: {tag}": schema for tag, schema in _tagged(union).items()}
        for name in sorted(every):
            self._names.setdefault(str(every[name]["$ref"]), name)
        for name in sorted(every):
            if name not in self._found:
                self._write(name, every[name])
        return self._found

    def _write(self, name: str, schema: Schema) -> None:
        reference = str(schema.get("$ref"))
        if self._names.get(reference, name) != name:
            self._found[name] = {"is": self._names[reference]}
            return
        of = self._target(schema)
        self._found[name] = fields = {}
        required = cast("Sequence[str]", of.get("required", ()))
        for field, each in cast("Mapping[str, Schema]", of.get("properties", {})).items():
            default = json.dumps(each.get("default", "(made)"))
            text = self._type(each, f"{name}.{field}")
            fields[field] = text if field in required else f"{text} = {default}"
        if of.get("additionalProperties") is False:
            fields["(others)"] = "refused"

    def _target(self, schema: Schema) -> Schema:
        reference = schema.get("$ref")
        return schema if reference is None else self._components[_last(reference)]

    def _type(self, schema: Schema, place: str) -> str:
        """Return a type in short words, and write down what it refers to."""
        if "$ref" in schema and "properties" in self._target(schema):
            reference = str(schema["$ref"])
            if reference not in self._names:
                self._names[reference] = name = self._free(place)
                self._write(name, schema)
            return self._names[reference]
        schema = self._target(schema)
        if "anyOf" in schema:
            members = cast("Sequence[Schema]", schema["anyOf"])
            return " | ".join(self._type(each, place) for each in members)
        if "enum" in schema:
            return " ".join(json.dumps(each) for each in cast("Sequence[object]", schema["enum"]))
        return self._plain(schema, place)

    def _free(self, place: str) -> str:
        """Return a name for a type at a place where other ones of a union may stand, too."""
        taken = set(self._names.values())
        names = (place, *(f"{place} ({number})" for number in range(2, len(taken) + 3)))
        return next(name for name in names if name not in taken)

    def _plain(self, schema: Schema, place: str) -> str:
        kind = str(schema.get("contentEncoding", schema.get("type", "anything")))
        if kind == "array":
            first = cast("Sequence[Schema]", schema.get("prefixItems", ()))
            items = ", ".join(self._type(each, place) for each in first)
            return f"[{items or self._type(cast('Schema', schema['items']), place)}]"
        if kind == "object":
            return f"{{{self._type(cast('Schema', schema['additionalProperties']), place)}}}"
        limits = [f" {_LIMITS[name]} {_number(schema[name])}" for name in _LIMITS if name in schema]
        return kind + "".join(limits)


def _last(reference: object) -> str:
    return str(reference).rpartition("/")[2]


def _number(value: object) -> str:
    """Return a limit, short where it is a large power of two."""
    if isinstance(value, int) and abs(value) >= 2**31 and abs(value).bit_count() == 1:
        return f"{'-' if value < 0 else ''}2^{abs(value).bit_length() - 1}"
    return str(value)


def database_schema() -> dict[str, str]:
    """Return the SQL of each table and index of a new database, exactly, and its version."""
    with tempfile.TemporaryDirectory(prefix="gsched-schema-") as directory:
        store = Store(directory)
        store.open()
        path = store.path
        store.close()
        with closing(sqlite3.connect(path)) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            rows = database.execute(
                "SELECT type || ' ' || name, sql FROM sqlite_master "
                "WHERE sql IS NOT NULL ORDER BY type, name"
            )
            return {"version": str(version), **dict(rows)}
