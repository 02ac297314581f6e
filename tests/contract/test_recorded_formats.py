"""Messages, stored records and the database schema are those of the record in tests/golden."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scripts.reproduce import elasticflow_main
from scripts.reproduce.decisions_differences import MISSING, Difference, differences
from scripts.reproduce.decisions_formats import fields_of_types
from scripts.reproduce.decisions_main import Record, Recorded, main
from scripts.reproduce.decisions_parts import PARTS, Wanted

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "formats.json"
MEANT = (
    "see above what differs. If it is meant: scripts/reproduce/decisions record "
    "tests/golden/formats.json --only formats,schema"
)
CASE = "paper, seed 0, torque"


def changed(tmp_path: Path, **parts: dict[str, object]) -> str:
    """Return a record of this code, with changes of cases in its parts; None takes one out."""
    path = tmp_path / "record.json"
    assert main(["record", str(path), "--only", ",".join(parts)]) == 0
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for name, cases in parts.items():
        every = record["parts"][name]["cases"] | cases
        record["parts"][name]["cases"] = {case: of for case, of in every.items() if of is not None}
    path.write_text(json.dumps(record), encoding="utf-8")
    return str(path)


def recorded(tmp_path: Path, name: str, cases: dict[str, object]) -> str:
    """Return a record of one part."""
    path = tmp_path / "record.json"
    record = Record(of={}, parts={name: Recorded(cases=cases)})
    path.write_bytes(msgspec.json.encode(record))
    return str(path)


def balance_case() -> dict[str, Any]:
    """Return what one case of a part comes to, as JSON gives it."""
    ran = PARTS["balance"].run(Wanted(names=frozenset({CASE})), lambda _: None)
    return msgspec.json.decode(msgspec.json.encode(ran.cases), type=dict[str, Any])


def test_formats_and_schema_are_those_of_the_record() -> None:
    assert main(["compare", str(GOLDEN), "--quick", "--all"]) == 0, MEANT


def test_what_differs_is_shown_with_both_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A field that had another default, a message that was there, a table of other columns."""
    health = {"ok": "boolean = true"}
    gone = {"request": "integer"}
    path = changed(
        tmp_path,
        formats={"API: GET /v1/health": health, "wire: to head: gone": gone},
        schema={"table blobs": "CREATE TABLE blobs (x)"},
    )

    assert main(["compare", path]) == 1
    told = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "formats: DIFFERS in 2 of" in told
    assert 'API: GET /v1/health ok "boolean = true" "boolean"' in told
    assert f'wire: to head: gone {{"request":"integer"}} {MISSING}' in told
    assert 'table blobs "CREATE TABLE blobs (x)" "CREATE TABLE blobs (\\n' in told


def test_a_message_that_is_new_differs(tmp_path: Path) -> None:
    path = changed(tmp_path, formats={"wire: to node: probe": None}, schema={})

    assert main(["compare", path, "--only", "schema"]) == 0
    assert main(["compare", path, "--only", "formats"]) == 1


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    owner: str


class Home(msgspec.Struct):
    pets: tuple[Cat | Dog, ...]
    first: Cat | None = None


def test_parts_of_messages_have_names_by_their_place() -> None:
    """Each member of a union has one, and a type that comes again is referred to."""
    assert fields_of_types({"home": Home}) == {
        "home": {"pets": "[home.pets | home.pets (2)]", "first": "home.pets | null = null"},
        "home.pets": {"type": '"Cat"', "lives": "integer = 9"},
        "home.pets (2)": {"type": '"Dog"', "owner": "string"},
    }
    assert list(fields_of_types({"pet": Cat | Dog})) == ["pet: Cat", "pet: Dog"]


def test_only_recorded_cases_are_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One case was recorded; with another makespan, its difference is told in numbers."""
    cases = balance_case()
    assert main(["compare", recorded(tmp_path, "balance", cases)]) == 0
    assert "balance: equal (1 cases" in capsys.readouterr().out

    cases[CASE]["makespan_s"] -= 2.5
    assert main(["compare", recorded(tmp_path, "balance", cases)]) == 1
    told = capsys.readouterr().out
    assert "makespan_s" in told
    assert "+2.5" in told


def test_a_policy_that_is_gone_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with --quick, which leaves out the cases of other seeds."""
    path = recorded(tmp_path, "balance", {"paper, seed 0, gone": {}, "paper, seed 1, torque": {}})

    assert main(["compare", path, "--quick"]) == 1
    told = capsys.readouterr().out
    assert "seed 0, gone" in told
    assert "seed 1" not in told


def test_without_its_traces_a_part_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither equal nor different; a record says why it has no cases."""
    monkeypatch.setattr(elasticflow_main, "DATA", tmp_path)
    path = recorded(tmp_path, "elasticflow", {"195job, 16 x 8, drs": {}})

    assert main(["compare", path]) == 2
    assert f"NOT COMPARED: there is no {tmp_path}" in "".join(capsys.readouterr().out.split("\n"))
    made = tmp_path / "made.json"
    assert main(["record", str(made), "--only", "elasticflow"]) == 0
    assert json.loads(made.read_text())["parts"]["elasticflow"]["skipped"]


def test_a_record_that_cannot_be_read_is_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none.json").write_text("{}", encoding="utf-8")

    assert main(["compare", str(tmp_path / "none.json")]) == 2
    assert main(["compare", str(tmp_path / "absent.json")]) == 2
    assert main(["compare", str(GOLDEN), "--only", "drs"]) == 2
    told = capsys.readouterr().err
    assert told.count("decisions: ") == 3
    assert "has no part drs" in told


def test_replies_are_compared_as_documents_and_as_bytes() -> None:
    """A document that differs tells where; one with other blanks or order still differs."""
    old = {"gstat": '{"jobs":[{"id":1,"gpus":2}]}\n'}

    assert differences(old, {"gstat": '{"jobs":[{"id":1,"gpus":4}]}\n'}) == [
        Difference(case="gstat", field="[0].jobs[0].gpus", old="2", new="4", by="+2")
    ]
    for same_values in ('{"jobs": [{"id":1,"gpus":2}]}\n', '{"jobs":[{"gpus":2,"id":1}]}\n'):
        [found] = differences(old, {"gstat": same_values})
        assert found.field == ""
        assert found.old != found.new
    assert differences({"a": {"n": 1}}, {"a": {"n": 1.0}}), "a program can tell them apart"
    assert not differences({"a": {"x": 1, "y": [2]}}, {"a": {"y": [2], "x": 1}})
