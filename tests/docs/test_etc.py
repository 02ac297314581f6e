"""The configuration that is shipped states the truth: every key, with its real default."""

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from gsched.config.environment import (
    DEFAULT_NODE_STATE_DIR,
)
from gsched.config.idle_gpus import IdleGpusConfig, IdleQueueConfig
from gsched.config.load import parse_config
from gsched.config.nodes import (
    GpuConfig,
    GpuShareConfig,
    HealthCheckConfig,
    LoginConfig,
    NodeConfig,
    OutsideConfig,
)
from gsched.config.notify import NotifyConfig
from gsched.config.policies import (
    BalanceConfig,
    DeadlineConfig,
    DrsConfig,
    ElasticflowConfig,
    FabricConfig,
    GoodputConfig,
    LinkConfig,
    SiaConfig,
    TrainingConfig,
)
from gsched.config.shares import PriorityConfig, ProjectConfig, QosConfig, SharesConfig
from gsched.config.tables import (
    Config,
    ContainersConfig,
    HeadConfig,
    HistoryConfig,
    MovesConfig,
    QueueConfig,
)
from gsched.config.tasks import TasksConfig

ETC = Path(__file__).resolve().parents[2] / "etc"
TEXT = (ETC / "gsched.toml").read_text(encoding="utf-8")
SETTING = re.compile(r"^#(?P<setting>\[\[?[a-z_.]+\]\]?|[a-z_]+ = .*)$", re.MULTILINE)


#: What new installations have, and those without a configuration do not.
SHIPPED = NodeConfig(no_new_privileges=True)


def test_shipped_configuration_is_the_default() -> None:
    """As it is shipped, nothing else differs from a machine without a configuration."""
    assert parse_config(TEXT, where="gsched.toml") == Config(node=SHIPPED)


def test_installation_has_lines_for_cron_as_an_example(tmp_path: Path) -> None:
    """They are for the head's machine alone, and would stay after a removal."""
    subprocess.run([ETC.parent / "scripts/lib/install-etc", tmp_path, "/usr"], check=True)

    installed = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in installed if name.startswith("etc/")} == {
        "etc/gsched/gsched.toml",
        "etc/logrotate.d/gsched",
    }
    assert "usr/share/doc/gsched/examples/cron.d/gsched" in installed


def test_each_commented_default_is_the_real_one() -> None:
    """Taking every comment mark off changes nothing but the examples: GPUs, a link, a project."""
    config = parse_config(SETTING.sub(r"\g<setting>", TEXT), where="gsched.toml")

    assert config.idle_gpus.queue == (IdleQueueConfig(name="batch"),)
    assert config.node.gpu == (GpuConfig(count=2),)
    check = HealthCheckConfig(name="scratch", program="/etc/gsched/check-scratch")
    assert config.node.health_check == (check,)
    assert config.fabric.link == (LinkConfig(nodes=("gpu1", "gpu2"), bandwidth="25GB/s"),)
    assert [each.name for each in config.project] == ["ai"]
    assert [each.name for each in config.qos] == ["urgent"]
    assert config.shares.gpus == {"h100": 32}
    assert msgspec.structs.replace(
        config,
        project=(),
        qos=(),
        shares=msgspec.structs.replace(config.shares, gpus={}),
        node=msgspec.structs.replace(config.node, gpu=(), health_check=()),
        fabric=msgspec.structs.replace(config.fabric, link=()),
        idle_gpus=msgspec.structs.replace(config.idle_gpus, queue=()),
    ) == Config(queue=(QueueConfig(name="batch"),), node=SHIPPED)


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("[head]", HeadConfig),
        ("[[queue]]", QueueConfig),
        ("[[project]]", ProjectConfig),
        ("[[qos]]", QosConfig),
        ("[shares]", SharesConfig),
        ("[priority]", PriorityConfig),
        ("[history]", HistoryConfig),
        ("[balance]", BalanceConfig),
        ("[fabric]", FabricConfig),
        ("[[fabric.link]]", LinkConfig),
        ("[training]", TrainingConfig),
        ("[training.deadline]", DeadlineConfig),
        ("[training.drs]", DrsConfig),
        ("[training.elasticflow]", ElasticflowConfig),
        ("[training.goodput]", GoodputConfig),
        ("[training.sia]", SiaConfig),
        ("[moves]", MovesConfig),
        ("[gpu_share]", GpuShareConfig),
        ("[containers]", ContainersConfig),
        ("[notify]", NotifyConfig),
        ("[node]", NodeConfig),
        ("[[node.gpu]]", GpuConfig),
        ("[[node.health_check]]", HealthCheckConfig),
        ("[outside_gpu_use]", OutsideConfig),
        ("[idle_gpus]", IdleGpusConfig),
        ("[login]", LoginConfig),
        ("[tasks]", TasksConfig),
    ],
)
def test_each_key_is_in_its_section(section: str, kind: type[msgspec.Struct]) -> None:
    """No key is left out, and none stands under another heading."""
    parts = re.split(r"^#?(\[.*\])$", TEXT, flags=re.MULTILINE)
    body = dict(zip(parts[1::2], parts[2::2], strict=True))[section]
    keys = set(re.findall(r"^#?([a-z_]+) = ", body, re.MULTILINE))
    extra = {  # tables of their own
        "[node]": {"gpu", "health_check"},
        "[fabric]": {"link"},
        "[idle_gpus]": {"queue", "interactive"},
        "[gpu_share]": {"mig"},  # it is shown in a comment: it is for one runtime only
        "[training]": {"deadline", "drs", "elasticflow", "goodput", "sia"},
    }.get(section, set())

    assert keys | extra == set(kind.__struct_fields__)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", ["gschedd.service", "gnode.service"])
def test_unit_files_are_understood(unit: str) -> None:
    """systemd finds fault only with programs and manual pages that are not installed."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(ETC / "systemd" / unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    faults = [line for line in done.stderr.splitlines() if "is not executable" not in line]

    assert faults == []


def unit_values(unit: str) -> dict[str, str]:
    lines = (ETC / "systemd" / unit).read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def test_roots_spool_is_not_below_the_directory_of_the_heads_account() -> None:
    """Whoever owns a directory on the way to the spool can plant jobs in it."""
    head, node = unit_values("gschedd.service"), unit_values("gnode.service")
    head_state, node_state = HeadConfig().state_dir, DEFAULT_NODE_STATE_DIR

    assert f"/var/lib/{head['StateDirectory']}" == head_state
    assert f"/var/lib/{node['StateDirectory']}" == node_state
    assert not node_state.startswith(f"{head_state}/")
    assert (head["User"], head["StateDirectoryMode"]) == ("gsched", "0700")
    assert "User" not in node
