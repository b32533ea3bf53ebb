-- How much memory each GPU, or slice, needs while nobody uses it; load is a boot and a driver's load.
CREATE TABLE gpu_idle (
    name  TEXT PRIMARY KEY,
    load  TEXT NOT NULL,
    least INTEGER NOT NULL,
    now   INTEGER NOT NULL
) STRICT;

-- NVLinks are judged anew after a restart: that one is down may be its peer's doing.
ALTER TABLE gpus DROP COLUMN resting;

-- Where each was last seen: NVML leaves out one that it cannot begin with.
ALTER TABLE gpus ADD COLUMN pci TEXT;

-- Whether a container of the lock's pod may have passed the gate; of older locks nobody can tell.
ALTER TABLE locks ADD COLUMN started INTEGER NOT NULL DEFAULT 1 CHECK (started IN (0, 1));
