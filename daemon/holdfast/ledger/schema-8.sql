-- What a claim may use without a lock, beside whoever has it (adminAccess).
CREATE TABLE claim_admin (
    claim    TEXT NOT NULL REFERENCES claims (uid) ON DELETE CASCADE,
    resource TEXT NOT NULL,
    device   TEXT NOT NULL,
    key      TEXT NOT NULL,
    PRIMARY KEY (claim, resource, device, key)
) STRICT, WITHOUT ROWID;
