"""The tables of the ledger, and how a file of an older version gets those of this one."""

from pathlib import Path

_SCHEMA = tuple(f"schema-{version}.sql" for version in range(1, 9))
"""What made each version from the one before; a file that was ever released is never edited."""
SCHEMA_VERSION = len(_SCHEMA)
APPLICATION_ID = 0x686F6C64  # "hold"


def upgrade(version: int) -> str:
    """Return the one transaction that brings a ledger of *version* to ours; 0: an empty file."""
    folder = Path(__file__).parent
    return "\n".join(
        (
            "BEGIN IMMEDIATE;",
            *(folder.joinpath(name).read_text("utf-8") for name in _SCHEMA[version:]),
            f"PRAGMA application_id = {APPLICATION_ID};",
            f"PRAGMA user_version = {SCHEMA_VERSION};",
            "COMMIT;",
        )
    )
