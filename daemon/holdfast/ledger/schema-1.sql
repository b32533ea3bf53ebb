-- One row per live thing; what is over is in history alone. Times are seconds since the epoch.
CREATE TABLE counters (
    only            INTEGER PRIMARY KEY CHECK (only = 1),
    fence           INTEGER NOT NULL,
    last_allocation INTEGER NOT NULL
) STRICT;

CREATE TABLE allocations (
    id            INTEGER PRIMARY KEY,
    resource      TEXT NOT NULL,
    created_at    REAL NOT NULL,
    boot          TEXT NOT NULL,
    checkpoint_at REAL NOT NULL,
    phase         TEXT NOT NULL CHECK (phase IN ('pending', 'active')),
    pod           TEXT
) STRICT;

CREATE TABLE allocation_keys (
    allocation INTEGER NOT NULL REFERENCES allocations (id) ON DELETE CASCADE,
    device     TEXT NOT NULL,
    key        TEXT NOT NULL,
    PRIMARY KEY (allocation, device, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE locks (
    resource   TEXT NOT NULL,
    device     TEXT NOT NULL,
    state      TEXT NOT NULL,
    fence      INTEGER NOT NULL UNIQUE,
    since      REAL NOT NULL,
    boot       TEXT NOT NULL,
    allocation INTEGER,
    pod        TEXT,
    evidence   TEXT NOT NULL,
    PRIMARY KEY (resource, device)
) STRICT, WITHOUT ROWID;

-- The promise itself: one piece of hardware is in one lock, or the commit fails.
CREATE TABLE lock_keys (
    key      TEXT PRIMARY KEY,
    resource TEXT NOT NULL,
    device   TEXT NOT NULL,
    FOREIGN KEY (resource, device) REFERENCES locks (resource, device) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE TABLE pods (
    uid           TEXT PRIMARY KEY,
    boot          TEXT NOT NULL,
    cgroup        TEXT,
    inode         INTEGER,
    namespace     TEXT NOT NULL,
    name          TEXT NOT NULL,
    counted_pid   INTEGER,
    counted_start INTEGER,
    let_go_at     REAL
) STRICT, WITHOUT ROWID;

CREATE TABLE history (
    seq      INTEGER PRIMARY KEY,
    at       REAL NOT NULL,
    resource TEXT NOT NULL,
    device   TEXT NOT NULL,
    fence    INTEGER NOT NULL UNIQUE,
    before   TEXT NOT NULL,
    after    TEXT NOT NULL,
    pod      TEXT,
    evidence TEXT NOT NULL
) STRICT;

CREATE INDEX history_of_device ON history (resource, device, seq);

INSERT INTO counters VALUES (1, 0, 0);
