"""Logs as JSON: one object a line, whatever is in a message, with its job and node."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from gsched.logs import JsonFormatter, log_environment, log_handler


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass
class Log:
    path: Path
    logger: logging.Logger
    handler: logging.Handler


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    handler = log_handler("json", str(tmp_path / "log"), "")
    logger = logging.getLogger("gschedd.x")
    logger.setLevel("INFO")
    logger.addHandler(handler)
    yield Log(tmp_path / "log", logger, handler)
    logger.removeHandler(handler)
    handler.close()


def test_a_line_is_an_object_with_a_time_and_what_it_is_about(log: Log) -> None:
    log.logger.warning("%d%% of job %s on node %s: %s", 5, "17", "n1", "a\nb")

    (found,) = lines(log.path)
    moment = datetime.fromisoformat(found.pop("time"))
    assert moment.tzinfo is not None
    assert found == {
        "level": "warning",
        "logger": "gschedd.x",
        "message": "5% of job 17 on node n1: a\nb",
        "job": "17",
        "node": "n1",
    }


def test_an_error_has_its_traceback_in_the_same_line(log: Log) -> None:
    try:
        int("no")
    except ValueError:
        log.logger.exception("failed")

    assert "ValueError: invalid literal" in lines(log.path)[0]["exception"]


def test_a_file_that_was_rotated_is_opened_again(log: Log) -> None:
    log.logger.info("first")
    log.path.rename(log.path.with_suffix(".1"))
    log.logger.info("second")

    assert [each["message"] for each in lines(log.path)] == ["second"]
    assert [each["message"] for each in lines(log.path.with_suffix(".1"))] == ["first"]


def test_worker_processes_log_in_the_same_way(log: Log) -> None:
    wanted = {"GSCHED_LOG_FORMAT": "json", "GSCHED_LOG_FILE": str(log.path)}
    assert log_environment([log.handler]) == wanted


def test_arguments_that_are_no_tuple_are_no_fault() -> None:
    record = logging.LogRecord("x", 20, "f", 1, "%(a)s of job 3", ({"a": 1},), None)

    assert json.loads(JsonFormatter().format(record))["message"] == "1 of job 3"
