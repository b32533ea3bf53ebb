-- Which ledger it is, how many commits it has had, and a checksum of all things as the last one left
-- them: pages of two ledgers, or of two moments of one, do not pass for one.
CREATE TABLE counters (
    only            INTEGER PRIMARY KEY CHECK (only = 1),
    fence           INTEGER NOT NULL,
    last_allocation INTEGER NOT NULL,
    ledger          TEXT NOT NULL,
    commits         INTEGER NOT NULL,
    checksum        TEXT NOT NULL
) STRICT;

-- One row for each thing that lives; what is over is in history alone. A document is a struct of the
-- book as JSON: another field of the struct changes nothing here.
CREATE TABLE things (
    kind     TEXT NOT NULL CHECK (
        kind IN ('allocation', 'lock', 'pod', 'claim', 'quarantine', 'drain', 'kept')
    ),
    name     TEXT NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- The promise itself: one piece of hardware is in one lock, or the commit fails.
CREATE TABLE lock_keys (
    key  TEXT PRIMARY KEY,
    lock TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- No fence is ever given twice.
CREATE TABLE history (
    fence    INTEGER PRIMARY KEY,
    resource TEXT NOT NULL,
    device   TEXT NOT NULL,
    document TEXT NOT NULL
) STRICT;

CREATE INDEX history_of_device ON history (resource, device, fence);
