"""Rules of the repository that no linter knows: run by hand, by .ci/run and as a test.

``python scripts/tidy.py`` prints one line for each fault, ``PATH:LINE: what``, and ends with 1 if
there is one. It looks at what git tracks or would track.
"""

import ast
import configparser
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

MAX_PYTHON_LINES = 600  # every admired code base has one huge file that nobody dares to split
MAX_CODE_LINES = 450  # of a file with more lines than that: docstrings and blanks are welcome
MAX_FILE_BYTES = 200_000
BANNED_MODULES = {"utils", "util", "helpers", "helper", "misc", "stuff"}
FRAGMENT_NAME = re.compile(r"(?:[0-9]+|\+[a-z0-9-]+)\.(?:breaking|feature|fix|doc)\.md")
TEXT_SUFFIXES = {".py", ".md", ".rst", ".toml", ".ini", ".sh", ".service", ".yml", ".yaml", ".pbs"}

_JOB_OUTPUT = re.compile(r"\.[oe][0-9]+(?:-[0-9]+)?")  # of a job or an element

_SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}
_UNNUMBERED = re.compile(r"\b(?:TODO|FIXME|XXX)\b(?!\(#[0-9]+\))")
_NOQA = re.compile(r"#\s*noqa\b(?P<rest>.*)", re.IGNORECASE)
_IGNORE = re.compile(r"#\s*type:\s*ignore(?P<rest>.*)")
_NOQA_GOOD = re.compile(r":\s*[A-Z]+[0-9]+(?:\s*,\s*[A-Z]+[0-9]+)*\s+(?:#|-+|—)\s*\S+.*")
_IGNORE_GOOD = re.compile(r"\[[a-z0-9-]+(?:\s*,\s*[a-z0-9-]+)*\]\s*#\s*\S+.*")
# With a class around a letter, so that this file does not break its own rule.
_HOME_PATH = re.compile(
    r"(?<![\w.])/(?:home|Users)/(?!\.\.\.|USER|user|alice|bob|me\b|you|u\b)\w|/wor[k]/(?:main|shared|[.]library)"
)
_INDEX_HOST = re.compile(r"pypi[.]org|pythonhosted[.]org|npmjs[.](?:org|com)|download[.]pytorch")

# Phrases that documents no longer use, and the field's terms. CONTRIBUTING, Language, has more.
PRIVATE_PHRASES = {
    r"trainings": "training jobs",
    r"(?:go|goes|went) on elsewhere": "migrate",
    r"foret(?:ell|old)\w*": "predict",
    r"promis(?:e|es|ed|ing)": "guarantee",
    r"(?:started|begun) anew": "restarted",
    r"queued again": "requeued",
    r"counted resources?": "consumable resource",
    r"in vain": "without success",
    r"not done well": "failed",
    r"(?:is|are) none of": "unknown, invalid",
    r"asks? for the same": "identical request",
    r"could ever hold": "can ever satisfy",
    r"(?:was|were) made from": "is based on",
    r"cannot be said": "unknown",
    r"be done by then": "meet its deadline",
    r"as who submits": "as the submitting user",
    r"are at home": "built for",
    r"is no (?:whole )?(?:number|date|moment|state|name)": "invalid",
    r"what it came to": "the results",
}
#: Phrases that the code still uses.
PHRASES_IN_CODE: frozenset[str] = frozenset()
PRODUCT_FOLDERS = {"gsched", "gschedd", "gnode"}
POLICY_ROOMS = ("gschedd/policies/queue", "gschedd/policies/training", "baselines")
#: Modules among the baselines that are no policies.
NO_POLICIES = {"kit", "registry"}

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"``[^`]+``|`[^`]+`")

Fault = tuple[Path, int, str]


def check(root: Path) -> list[str]:
    """Return every fault of the tree at ``root`` as ``PATH:LINE: what``, sorted."""
    paths = [path for path in tracked_files(root) if (root / path).is_file()]
    faults: list[Fault] = []
    for path in paths:
        content = (root / path).read_bytes()
        if len(content) > MAX_FILE_BYTES:
            faults.append((path, 0, f"{len(content):,} bytes: at most {MAX_FILE_BYTES:,}"))
        if _JOB_OUTPUT.fullmatch(path.suffix):
            faults.append((path, 0, "the output of a job: remove it, and run jobs elsewhere"))
        if is_text(path, content):
            lines = content.decode("utf-8", "replace").splitlines()
            for rule in RULES:
                faults.extend((path, line, what) for line, what in rule(path, lines))
    faults.extend(fragment_faults(root))
    faults.extend(policy_faults(root))
    return [f"{path}:{line}: {what}" for path, line, what in sorted(faults)]


def tracked_files(root: Path) -> list[Path]:
    """Return the files that git tracks, and those it does not ignore, below ``root``."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout.decode()
    return [Path(name) for name in listed.split("\0") if name]


def is_text(path: Path, content: bytes) -> bool:
    """Return whether the rules for text apply: by its suffix, or a script by its first line."""
    return path.suffix in TEXT_SUFFIXES or content.startswith(b"#!")


def size_faults(path: Path, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Find Python files that are too long, by their lines and by their lines of code."""
    if path.suffix != ".py" or len(lines) <= MAX_PYTHON_LINES:
        return
    code = code_lines("\n".join(lines))
    if code > MAX_CODE_LINES:
        most = f"at most {MAX_PYTHON_LINES}, or {MAX_CODE_LINES} of code"
        yield len(lines), f"{len(lines)} lines, {code} of code: split it ({most})"


def code_lines(text: str) -> int:
    """Return how many lines have code: no blank lines, comments and docstrings."""
    found: set[int] = set()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - docstrings)


def name_faults(path: Path, _lines: list[str]) -> Iterator[tuple[int, str]]:
    """Find modules whose name says nothing."""
    if path.suffix == ".py" and BANNED_MODULES & set(path.with_suffix("").parts):
        yield 0, f"a module name that says nothing (banned: {', '.join(sorted(BANNED_MODULES))})"


def space_faults(path: Path, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Find tabs and blanks at the end of lines."""
    for number, line in enumerate(lines, 1):
        if "\t" in line and path.name != "Makefile":
            yield number, "a tab: write \\t, or blanks"
        if line != line.rstrip():
            yield number, "blanks at the end of the line"


def comment_faults(path: Path, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Find reminders without a number, and silenced checks without a code and a reason."""
    if path.name in {"tidy.py", "test_repo.py"}:
        return  # these speak about the words
    for number, line in enumerate(lines, 1):
        if _UNNUMBERED.search(line):
            yield number, "a reminder without a number: write it with (#NUMBER), or do it"
        noqa = _NOQA.search(line)
        if noqa and not _NOQA_GOOD.fullmatch(noqa["rest"].strip()):
            yield number, "noqa needs codes and a reason: # noqa: S101 - why"
        ignore = _IGNORE.search(line)
        if ignore and not _IGNORE_GOOD.fullmatch(ignore["rest"].strip()):
            yield number, "type: ignore needs a code and a reason: [code]  # why"


def place_faults(_path: Path, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Find somebody's own directories, and hosts of package registries."""
    for number, line in enumerate(lines, 1):
        if _HOME_PATH.search(line):
            yield number, "a path that exists on one machine only"
        if _INDEX_HOST.search(line):
            yield number, "the host of a package registry: a site may have its own"


def _compiled(phrases: Iterable[str]) -> re.Pattern[str]:
    """Return one pattern for all phrases, over the ends of lines, with a group for each."""
    parts = ["(" + phrase.replace(" ", r"\s+") + ")" for phrase in phrases]
    return re.compile(rf"\b(?:{'|'.join(parts)})\b", re.IGNORECASE)


_IN_DOCUMENTS = tuple(PRIVATE_PHRASES)
_IN_PYTHON = tuple(phrase for phrase in PRIVATE_PHRASES if phrase not in PHRASES_IN_CODE)
_DOCUMENT_PATTERN = _compiled(_IN_DOCUMENTS)
_PYTHON_PATTERN = _compiled(_IN_PYTHON)


def word_faults(path: Path, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Find private phrases in documents, and in the product's code those that it has lost.

    Quoted output and names are left out: messages are the programs' business.
    """
    text = "\n".join(lines)
    if path.suffix in {".md", ".rst"} and path.name != "CONTRIBUTING.md":
        phrases, pattern = _IN_DOCUMENTS, _DOCUMENT_PATTERN
        text = _FENCE.sub(_blank, text)
        text = _QUOTED.sub(_blank, text)
    elif path.suffix == ".py" and path.parts[0] in PRODUCT_FOLDERS:
        phrases, pattern = _IN_PYTHON, _PYTHON_PATTERN
    else:
        return
    for match in pattern.finditer(text):
        assert match.lastindex is not None
        better = PRIVATE_PHRASES[phrases[match.lastindex - 1]]
        yield text.count("\n", 0, match.start()) + 1, f"'{match[0]}': write '{better}' or the like"


def _blank(match: re.Match[str]) -> str:
    """Return the line ends of a quotation, so that lines keep their numbers."""
    return "\n" * match[0].count("\n")


RULES: tuple[Callable[[Path, list[str]], Iterator[tuple[int, str]]], ...] = (
    size_faults,
    name_faults,
    space_faults,
    comment_faults,
    place_faults,
    word_faults,
)


def fragment_faults(root: Path) -> Iterator[Fault]:
    """Find changelog fragments with a wrong name, or that are not one sentence for the user."""
    folder = root / "changelog.d"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name == "README.md":
            continue
        relative = path.relative_to(root)
        if not FRAGMENT_NAME.fullmatch(path.name):
            yield relative, 0, "name it NUMBER.{breaking,feature,fix,doc}.md"
            continue
        text = path.read_text(encoding="utf-8").strip()
        if not text or text.startswith(("#", "-", "*")) or not text.endswith("."):
            yield (
                relative,
                1,
                "one paragraph for the user, without a heading, ending in a full stop",
            )


def policy_faults(root: Path) -> Iterator[Fault]:
    """Find policies that exist in one place and are not named in another."""
    policies = {
        path.stem if path.is_file() else path.name
        for room in POLICY_ROOMS
        for path in (root / room).glob("*")
        if not path.name.startswith("_")
        and path.stem not in NO_POLICIES
        and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    contracts = Path(".importlinter")
    parser = configparser.ConfigParser()
    parser.read(root / contracts, encoding="utf-8")
    listed = {
        name.rpartition(".")[2]
        for name in parser.get("importlinter:contract:policies-apart", "modules").split()
    }
    for name in sorted(policies ^ listed):
        where = (
            "is not in its list of independent policies" if name in policies else "does not exist"
        )
        yield contracts, 0, f"policy {name} {where}"
    guide = Path("docs/users-guide.md")
    installed = guide, *sorted((root / "docs" / "policies").glob("*.md"))
    text = "".join(
        (root / each).read_text(encoding="utf-8") for each in installed if (root / each).exists()
    )
    for name in sorted(policies):
        if f"`{name}`" not in text:
            yield guide, 0, f"policy `{name}` is not described"


def main() -> int:
    """Print every fault and return the exit code."""
    root = Path(__file__).resolve().parents[1]
    faults = check(root)
    for fault in faults:
        print(fault)
    print(f"tidy: {len(faults)} fault(s)" if faults else "tidy: nothing to say")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
