-- What was seen of each GPU that a restart of the daemon must not forget.
CREATE TABLE gpus (
    uuid    TEXT PRIMARY KEY,
    boot    TEXT NOT NULL,
    driver  TEXT NOT NULL,
    -- NVLinks that were down from the beginning, as JSON; NULL: not looked at yet.
    resting TEXT,
    -- The signs that it needs a reset, as JSON.
    awaits  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Xids that a GPU has not been cleared of; gi and ci are -1 where it is not about a slice.
CREATE TABLE gpu_xids (
    uuid      TEXT NOT NULL REFERENCES gpus (uuid) ON DELETE CASCADE,
    xid       INTEGER NOT NULL,
    gi        INTEGER NOT NULL,
    ci        INTEGER NOT NULL,
    suspected INTEGER NOT NULL CHECK (suspected IN (0, 1)),
    first     REAL NOT NULL,
    last      REAL NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY (uuid, xid, gi, ci, suspected)
) STRICT, WITHOUT ROWID;
