"""Settings of the cluster, which nodes get from the head: messages, and the reply for operators."""

from msgspec import Struct

from gsched.model.configuration import SettingRow, SettingsRow
from gsched.model.numbers import Count


class ClusterSettings(Struct, frozen=True, kw_only=True, tag="cluster_settings"):
    """Head to node, after its welcome and when they have changed: what the head's file states.

    Sent only to nodes that have said in ``config`` of `Register` that they take settings, and that
    do not have these. Answered by ``config`` of a `Heartbeat`.

    Attributes:
        digest: of the settings.
        file: SHA-256 of the head's file. A node whose own file is the same reads it again.
        settings: values as JSON, by table and key.
    """

    digest: str
    file: str
    settings: dict[str, dict[str, str]]


class SettingsWanted(Struct, frozen=True, kw_only=True, tag="settings_wanted"):
    """Head to node: with what do you run? Answered by `SettingsRead` with the same request."""

    request: Count


class SettingsRead(Struct, frozen=True, kw_only=True, tag="settings_read"):
    """The answer to `SettingsWanted`."""

    request: Count
    settings: tuple[SettingRow, ...]


class NodeSettingsReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/nodes/{name}/settings`` (operators only).

    Attributes:
        path: of the node's own file.
        head: the digest of the settings that the head has for its nodes.
        state: how the node has taken them.
    """

    node: str
    path: str
    head: str
    state: SettingsRow
    settings: tuple[SettingRow, ...]
