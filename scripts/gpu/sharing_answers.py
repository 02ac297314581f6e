"""Questions about a GPU, each with a time limit, and the record of their answers."""

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gnode.gpushare.errors import ShareRefusedError
from scripts.gpu.sharing_node import Node, OutOfTimeError

Answer = dict[str, Any]
LIMIT_S: Final = 25.0


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        ask: returns figures, ``ok`` where there is a right answer, ``skipped`` with the reason
            where it cannot be asked, ``said`` for people.
        limit_s: its processes are killed then, and it has failed.
    """

    ask: Callable[[Node], Answer]
    limit_s: float = LIMIT_S

    @property
    def name(self) -> str:
        """Return its name."""
        return self.ask.__name__


def table(*asked: Question | Callable[[Node], Answer]) -> dict[str, Question]:
    """Return questions by name."""
    every = [each if isinstance(each, Question) else Question(each) for each in asked]
    return {each.name: each for each in every}


class Record:
    """What was found: a JSON value on each line of a file, written at once.

    Args:
        path: of the file; None: there is none.

    Attributes:
        failed: how many answers were wrong.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.failed = 0
        if path is not None:
            path.write_text("", encoding="utf-8")

    def add(self, part: str, name: str, answer: Mapping[str, Any]) -> None:
        """Write one answer."""
        self.failed += answer.get("ok") is False
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": part, "question": name, **answer}) + "\n")


def ask_all(
    node: Node, part: str, questions: Mapping[str, Question], names: Iterable[str], record: Record
) -> None:
    """Ask questions; one that fails or hangs does not keep the others from being asked.

    Raises:
        OutOfTimeError: there is no time for the rest of them.
    """
    for name in names:
        begun_s = time.monotonic()
        answer = answer_to(node, questions[name])
        answer["took_s"] = round(time.monotonic() - begun_s, 3)
        record.add(part, name, answer)
        show(name, answer)


def answer_to(node: Node, question: Question) -> Answer:
    """Return the answer to a question, whatever happens to it.

    Raises:
        OutOfTimeError: the time for all questions is over.
    """
    try:
        with node.limited(question.limit_s):
            answer = question.ask(node)
    except OutOfTimeError:
        raise
    except subprocess.SubprocessError as error:
        answer = {"ok": False, "said": str(error)}
    except ShareRefusedError as error:
        answer = {"ok": False, "said": f"{error} ({error.hint})"}
    except Exception as error:  # noqa: BLE001 - whatever it is: the next one is asked
        answer = {"ok": False, "said": f"{type(error).__name__}: {error}"}
    if node.late and node.left_s <= 0:
        raise OutOfTimeError
    if node.late:
        answer |= {"ok": False, "said": f"not done in {question.limit_s:g} s"}
    return answer


def show(name: str, answer: Mapping[str, Any]) -> None:
    """Print an answer in a line."""
    words = {True: "ok", False: "FAIL", None: ""}[answer.get("ok")]
    if "skipped" in answer:
        words = "skip"
    told = ", ".join(f"{key} {short(one)}" for key, one in answer.items() if key != "ok")
    print(f"{words:4}  {name}: {told}", flush=True)


def short(value: object) -> str:
    """Return a value as one reads it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} {short(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        shown = ", ".join(short(one) for one in value[:4])
        return f"[{shown}{', …' if len(value) > 4 else ''}]"
    return str(value)
