"""The published description of the API has all that is served (T53 relies on it)."""

import re
from pathlib import Path

import gschedd.http
from gschedd.http.schema import QUERIES, ROUTES, document

SERVED = re.compile(r"web\.(get|post|delete)\(\"(/v1/[^\"]*)\"")
#: Of nodes, of hosts that join, of the head's own processes, and what is no JSON.
OTHERS = {
    ("get", "/v1/node"),
    ("get", "/v1/login"),
    ("get", "/v1/session"),
    ("post", "/v1/join"),
    ("post", "/v1/join-head"),
    ("get", "/v1/jobs/{id}/session"),
    ("get", "/v1/metrics"),
    ("get", "/v1/openapi.json"),
}


def test_each_route_is_described_and_no_other() -> None:
    folder = Path(gschedd.http.__file__).parent
    texts = [path.read_text() for path in folder.glob("*.py")]
    served = {match for text in texts for match in SERVED.findall(text)}

    assert {(method, path) for method, path, *_ in ROUTES} == served - OTHERS


def test_the_description_says_that_requests_have_a_token() -> None:
    found = document()

    assert found["security"] == [{"token": []}]
    paths = found["paths"]
    assert isinstance(paths, dict)
    assert set(QUERIES) <= set(paths)
    for path, operations in paths.items():
        for operation in operations.values():
            named = {each["name"] for each in operation.get("parameters", ())}
            assert set(re.findall(r"{(\w+)}", path)) <= named
