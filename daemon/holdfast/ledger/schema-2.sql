-- What a person withholds by hand, until a person lifts it: it outlives locks, restarts and boots.
CREATE TABLE quarantines (
    resource TEXT NOT NULL,
    device   TEXT NOT NULL,
    at       REAL NOT NULL,
    uid      INTEGER NOT NULL,
    pid      INTEGER NOT NULL,
    reason   TEXT NOT NULL,
    PRIMARY KEY (resource, device)
) STRICT, WITHOUT ROWID;

CREATE TABLE quarantine_keys (
    resource TEXT NOT NULL,
    device   TEXT NOT NULL,
    key      TEXT NOT NULL,
    PRIMARY KEY (resource, device, key),
    FOREIGN KEY (resource, device) REFERENCES quarantines (resource, device) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- One row while the whole node is drained.
CREATE TABLE drain (
    only   INTEGER PRIMARY KEY CHECK (only = 1),
    at     REAL NOT NULL,
    uid    INTEGER NOT NULL,
    pid    INTEGER NOT NULL,
    reason TEXT NOT NULL
) STRICT;
