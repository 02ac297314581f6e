"""Manual pages say what the programs do: every option, every key, every file of a page converts."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest
from docutils.core import publish_string

from gsched.config.cluster import OF_CLUSTER
from gsched.config.idle_gpus import IdleGpusConfig
from gsched.config.limits import ResourceLimits
from gsched.config.nodes import (
    GpuConfig,
    GpuShareConfig,
    LoginConfig,
    MigConfig,
    NodeConfig,
    OutsideConfig,
    StagingConfig,
)
from gsched.config.notify import NotifyConfig
from gsched.config.policies import (
    BalanceConfig,
    DeadlineConfig,
    DrsConfig,
    ElasticflowConfig,
    FabricConfig,
    LinkConfig,
    TrainingConfig,
)
from gsched.config.preemption import PreemptionConfig
from gsched.config.reload import TakesEffect, daemon_of, takes_effect
from gsched.config.shares import PriorityConfig, ProjectConfig, QosConfig, SharesConfig
from gsched.config.tables import (
    Config,
    ContainersConfig,
    HeadConfig,
    HistoryConfig,
    LimitsConfig,
    MovesConfig,
    PowerConfig,
    QueueConfig,
    StoreConfig,
)
from gsched.config.tasks import TasksConfig
from gsched.config.tls import HttpsConfig, TlsConfig
from gsched.config.web import WebConfig

ROOT = Path(__file__).resolve().parents[2]
MAN = ROOT / "man"
COMMANDS = (
    *("gsub", "gstat", "gdel", "ghold", "grls", "gsig", "grerun", "galter"),
    *(
        "gpeek",
        "gattach",
        "gshell",
        "gwait",
        "gnodes",
        "ghist",
        "greport",
        "gmigrate",
        "gmgr",
        "gmove",
        "gmsg",
        "gprio",
        "gseff",
        "gselect",
        "gres",
        "glimits",
        "gshare",
        "gsched",
    ),
)
#: Commands of PBS with options of their own; the others have those of a g-command.
PBS_COMMANDS = (
    *("qstat", "pbsdsh", "pbsnodes", "qmgr", "tracejob"),
    *("pbs_rsub", "pbs_ralter", "pbs_rstat", "pbs_rdel"),
)
#: Options that all commands have: one section of gsched-pbs(7) describes them.
COMMON = {"--head", "--json", "--version", "--help"}
DAEMONS = {"gschedd": "gschedd.main", "gnode": "gnode.main", "gnode-pam": "gnode.pam"}
SECTIONS = ("SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO")
# rst2man makes the section "Name" from the title and the subtitle of a page.
_NAME = re.compile(r'^\.SH "?Name"?\n(?P<name>\S+) \\- \S', re.MULTILINE | re.IGNORECASE)
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z0-9][A-Za-z0-9-]*")
_HEADING = re.compile(r"^(?P<title>[^\s].*)\n(?P<line>[=\-~])(?P=line)+$", re.MULTILINE)


def page_of(name: str) -> Path:
    """Return the page of a command, a daemon or a file."""
    found = sorted(MAN.glob(f"{name}.[1-8].rst"))
    assert len(found) == 1, f"one page for {name}: {found}"
    return found[0]


def text_of(page: Path) -> str:
    """Return the page with the files that it includes."""

    def included(match: re.Match[str]) -> str:
        return (MAN / match["path"]).read_text(encoding="utf-8")

    return re.sub(
        r"^\.\. include:: (?P<path>\S+)$", included, page.read_text("utf-8"), flags=re.MULTILINE
    )


def sections_of(page: Path) -> dict[str, str]:
    """Return the text below each heading, whatever its level, by the heading in capitals."""
    text = text_of(page)
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return {
        heading["title"].strip().upper(): text[heading.end() : end]
        for heading, end in zip(headings, ends, strict=True)
    }


def described(text: str) -> set[str]:
    """Return the options that stand at the start of a line, before what is said about them."""
    found: set[str] = set()
    for line in text.splitlines():
        bare = line.lstrip("*`") if line[:1] in "*`" else line
        if bare.startswith("-") and set(bare.strip()) != {"-"}:
            # An option ends where the description on the same line begins.
            found.update(_OPTION.findall(re.split(r"\s{2,}", bare)[0]))
    return found


def command_of(name: str) -> click.Command:
    """Return the click command of that name."""
    command = getattr(importlib.import_module(f"gsched.cli.commands.{name}"), name)
    assert isinstance(command, click.Command)
    return command


def options_of(command: click.Command) -> set[str]:
    """Return every option that the parser knows, ``--help`` included."""
    context = click.Context(command, info_name=command.name)
    return {
        option
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


def sub_commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the words and the command of everything below a group."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from sub_commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def has_page(name: str) -> bool:
    """Return whether somebody has written it."""
    return bool(list(MAN.glob(f"{name}.[1-8].rst")))


def test_every_command_and_daemon_has_its_page() -> None:
    """As ``[project.scripts]`` lists them, and the configuration."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {*project["scripts"], "gsched.toml"}

    assert {name for name in names if not has_page(name)} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_and_the_parser_have_the_same_options(name: str) -> None:
    """None left out, none invented."""
    command = command_of(name)
    sections = sections_of(page_of(name))

    assert described(sections["OPTIONS"]) == options_of(command)


@pytest.mark.parametrize("name", PBS_COMMANDS)
def test_a_command_of_pbs_has_its_section_with_its_options(name: str) -> None:
    """In the one page for all of them."""
    from gsched.cli.pbs.shim import command_of

    command = command_of(name)
    section = sections_of(page_of("gsched-pbs"))[name.upper()]

    assert described(section) == options_of(command) - COMMON


def test_every_command_of_pbs_is_named_in_the_page() -> None:
    """With the command that it stands for."""
    from gsched.cli.pbs.shim import COMMANDS as SHIMS

    text = text_of(page_of("gsched-pbs"))
    assert {name for name in SHIMS if f"**{name}**" not in text} == set()


def test_every_sub_command_has_its_section_with_its_options() -> None:
    """Of ``gsched``, the only command that has some."""
    group = command_of("gsched")
    assert isinstance(group, click.Group)
    sections = sections_of(page_of("gsched"))
    for words, command in sub_commands(group):
        section = sections[f"GSCHED {words.upper()}"]
        assert described(section) == options_of(command), words


@pytest.mark.parametrize("name", DAEMONS)
def test_the_page_of_a_daemon_has_the_options_of_its_help(name: str) -> None:
    """What ``--help`` prints is what its parser knows."""
    ran = subprocess.run(
        [sys.executable, "-m", DAEMONS[name], "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    known = described("\n".join(line.lstrip() for line in ran.stdout.splitlines()))

    assert described(sections_of(page_of(name))["OPTIONS"]) == known - {"-h"}


def test_every_key_of_the_configuration_is_described() -> None:
    """In the section of its table; and no key that does not exist."""
    sections = sections_of(page_of("gsched.toml"))
    tables: dict[str, type[msgspec.Struct]] = {
        "[HEAD]": HeadConfig,
        "[[QUEUE]]": QueueConfig,
        "[[PROJECT]]": ProjectConfig,
        "[[QOS]]": QosConfig,
        "[SHARES]": SharesConfig,
        "[PRIORITY]": PriorityConfig,
        "[STORE]": StoreConfig,
        "[HISTORY]": HistoryConfig,
        "[BALANCE]": BalanceConfig,
        "[FABRIC]": FabricConfig,
        "[[FABRIC.LINK]]": LinkConfig,
        "[TRAINING]": TrainingConfig,
        "[TRAINING.DEADLINE]": DeadlineConfig,
        "[TRAINING.DRS]": DrsConfig,
        "[TRAINING.ELASTICFLOW]": ElasticflowConfig,
        "[MOVES]": MovesConfig,
        "[POWER]": PowerConfig,
        "[GPU_SHARE]": GpuShareConfig,
        "[[GPU_SHARE.MIG]]": MigConfig,
        "[CONTAINERS]": ContainersConfig,
        "[NOTIFY]": NotifyConfig,
        "[WEB]": WebConfig,
        "[TLS]": TlsConfig,
        "[HTTPS]": HttpsConfig,
        "[LIMITS]": LimitsConfig,
        "TABLES OF LIMITS": ResourceLimits,
        "[STAGING]": StagingConfig,
        "[NODE]": NodeConfig,
        "[[NODE.GPU]]": GpuConfig,
        "[OUTSIDE_GPU_USE]": OutsideConfig,
        "[IDLE_GPUS]": IdleGpusConfig,
        "[PREEMPTION]": PreemptionConfig,
        "[LOGIN]": LoginConfig,
        "[TASKS]": TasksConfig,
    }
    for title, struct in tables.items():
        terms = re.findall(r"^([a-z0-9_]+(?:, [a-z0-9_]+)*)\n    \S", sections[title], re.MULTILINE)
        keys = {key for term in terms for key in term.split(", ")}
        assert keys == {
            field.name
            for field in msgspec.structs.fields(struct)
            if struct is not TrainingConfig or isinstance(field.default, (str, int, float))
        }, title  # the tables of policies are below
    fields = {field.name for field in msgspec.structs.fields(Config)}
    assert fields == {
        "head",
        "node",
        "queue",
        "project",
        "qos",
        "shares",
        "priority",
        "preemption",
        "store",
        "history",
        "balance",
        "fabric",
        "training",
        "moves",
        "power",
        "limits",
        "containers",
        "staging",
        "gpu_share",
        "outside_gpu_use",
        "idle_gpus",
        "login",
        "tasks",
        "notify",
        "web",
        "tls",
        "https",
    }


def when_keys_count() -> dict[str, str]:
    """Return what gsched.toml(5) says of each table: which keys a reload applies, and which not."""
    rows: dict[str, dict[str, list[str]]] = {}
    for table, kind in config_tables(Config):
        nested = {name for name, _ in config_tables(kind)}
        for field in msgspec.structs.fields(kind):
            if field.name in nested and takes_effect(table, field.name) is TakesEffect.RESTART:
                continue  # its keys have a row of their own
            effect = takes_effect(table, field.name)
            how = {
                TakesEffect.RELOAD: f"reload of **{daemon_of(table, field.name)}**",
                TakesEffect.RESTART: f"restart of **{daemon_of(table, field.name)}**",
                TakesEffect.LOGIN: "next login",
            }[effect]
            rows.setdefault(table, {}).setdefault(how, []).append(f"``{field.name}``")
    return {
        table: " ".join(
            f"{how[0].upper()}{how[1:]}: {', '.join(keys)}." for how, keys in hows.items()
        )
        for table, hows in rows.items()
    }


def config_tables(
    kind: type[msgspec.Struct], path: str = ""
) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield the tables below a table, at any depth, by their names in the file."""
    for field in msgspec.structs.fields(kind):
        info = msgspec.inspect.type_info(field.type)
        if isinstance(info, msgspec.inspect.VarTupleType):
            info = info.item_type
        if isinstance(info, msgspec.inspect.StructType) and info.cls is not ResourceLimits:
            assert issubclass(info.cls, msgspec.Struct)
            yield f"{path}{field.name}", info.cls
            if takes_effect(path.rstrip("."), field.name) is TakesEffect.RESTART:
                yield from config_tables(info.cls, f"{path}{field.name}.")


def test_the_page_says_for_each_key_whether_a_reload_applies_it() -> None:
    """From the one table, `gsched.config.reload.RELOADED`."""
    section = sections_of(page_of("gsched.toml"))["CHANGES OF A RUNNING CLUSTER"]
    found = re.findall(r"^``\[+([a-z_.]+)\]+``\n((?:    .*\n)+)", section, re.MULTILINE)

    said = {table: " ".join(text.split()) for table, text in found}
    assert said == when_keys_count()


def test_the_page_lists_the_keys_that_the_head_states_for_its_nodes() -> None:
    """From the one table, `gsched.config.cluster.OF_CLUSTER`."""
    section = sections_of(page_of("gsched.toml"))["SETTINGS OF THE CLUSTER"]
    found = re.findall(r"^``\[([a-z_]+)\]``\n((?:    .*\n)+)", section, re.MULTILINE)

    assert {table: tuple(re.findall(r"``(\w+)``", text)) for table, text in found} == OF_CLUSTER


@pytest.mark.parametrize("page", sorted(MAN.glob("*.rst")), ids=lambda page: page.name)
def test_a_page_converts_and_is_complete(page: Path) -> None:
    """Without a warning; with a name for `apropos`, and the sections people look for."""
    made = publish_string(
        page.read_text(encoding="utf-8"),
        source_path=str(page),
        writer="manpage",
        settings_overrides={"report_level": 1, "halt_level": 2, "file_insertion_enabled": True},
    )
    text = made.decode() if isinstance(made, bytes) else str(made)
    name, section = page.name.removesuffix(".rst").rsplit(".", 1)

    named = _NAME.search(text)
    assert named is not None
    assert named["name"].replace("\\&", "") == name
    assert re.search(rf'^\.TH "?{re.escape(name)}"? "?{section}"?', text, re.MULTILINE)
    wanted = [each for each in SECTIONS if section != "5" or each not in {"OPTIONS", "EXIT STATUS"}]
    headings = re.findall(r'^\.SH "?([A-Z ]+?)"?$', text, re.MULTILINE)
    assert [each for each in wanted if each not in headings] == []
    assert headings.count("NAME") == 0, "the title makes it already"


@pytest.mark.parametrize("page", sorted(MAN.glob("*.rst")), ids=lambda page: page.name)
def test_pages_refer_to_pages_that_exist(page: Path) -> None:
    """In SEE ALSO and anywhere else; other projects' pages are known by their section."""
    for name, section in re.findall(r"\*\*(g[a-z.]+)\*\*\\ \((\d)\)", text_of(page)):
        assert (MAN / f"{name}.{section}.rst").exists(), f"{name}({section})"
