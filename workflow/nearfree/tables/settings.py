"""Table `settings`: every setting that a scope has something to say about."""

from msgspec import structs

from nearfree.settings import Setting, setting_key
from nearfree.tables.schema import ORIGINS, SETTING_COLUMNS, Table, count, text

SETTINGS = Table(
    name="settings",
    row="a setting of one platform",
    key=("platform", "origin", "setting_key", "baseline"),
    body={
        "platform": text("the kind of machine"),
        "origin": text("where its latencies or boundaries come from", one_of=ORIGINS),
        **SETTING_COLUMNS,
        "baseline": count("the N that ratios refer to"),
    },
)


def setting_row(setting: Setting) -> dict[str, object]:
    """Return a setting's columns."""
    return {"setting_key": setting_key(setting), **structs.asdict(setting)}
