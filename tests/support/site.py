"""Settings of a cluster, with changes of single keys."""

from msgspec import structs

from gsched.config.tables import Config, HeadConfig, MovesConfig, QueueConfig
from gschedd.core.state.settings import Settings

#: Tables whose keys `changed` finds; no two of them have a key of one name.
TABLES = ("head", "balance", "training", "moves", "limits", "containers", "power")
PLAIN = Settings(
    server="head",
    config=Config(head=HeadConfig(max_user_priority=1023), moves=MovesConfig(warm=False)),
    queues={"batch": QueueConfig(name="batch")},
)


def changed(settings: Settings, **changes: object) -> Settings:
    """Return settings with changes: of their fields, of whole tables, or of keys of a table."""
    own = {key: changes.pop(key) for key in [*changes] if key in settings.__struct_fields__}
    tables = {key: changes.pop(key) for key in [*changes] if key in Config.__struct_fields__}
    for name in TABLES:
        table = getattr(settings.config, name)
        keys = {key: changes.pop(key) for key in [*changes] if key in table.__struct_fields__}
        if keys:
            tables[name] = structs.replace(table, **keys)
    assert not changes, f"no settings of these names: {sorted(changes)}"
    return structs.replace(settings, config=structs.replace(settings.config, **tables), **own)
