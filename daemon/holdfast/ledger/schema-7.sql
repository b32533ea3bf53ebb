-- ResourceClaims, whose devices are in the same locks as those of the device plugin's pods.
CREATE TABLE claims (
    uid       TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    boot      TEXT NOT NULL,
    -- Seconds since that boot; NULL while it is in preparation or prepared.
    over_at   REAL
) STRICT, WITHOUT ROWID;

-- The pods that share a claim.
CREATE TABLE claim_pods (
    claim TEXT NOT NULL REFERENCES claims (uid) ON DELETE CASCADE,
    pod   TEXT NOT NULL,
    PRIMARY KEY (claim, pod)
) STRICT, WITHOUT ROWID;

-- NULL: it came by the device plugin.
ALTER TABLE allocations ADD COLUMN claim TEXT;
ALTER TABLE locks ADD COLUMN claim TEXT;

-- "namespace/name (uid)": the history outlives the row in claims.
ALTER TABLE history ADD COLUMN claim TEXT;
