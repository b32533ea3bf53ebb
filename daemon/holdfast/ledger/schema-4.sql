-- What decides compares no time of day, which may be set: kubelet's checkpoint is told by its file,
-- and moments are seconds since the boot that is named beside them. What an older file has instead
-- is of no use any more: any checkpoint that is read from now on is newer than its Allocations, and
-- kubelet is asked anew which pods it let go of.
ALTER TABLE allocations ADD COLUMN checkpoint TEXT NOT NULL DEFAULT '';
ALTER TABLE allocations ADD COLUMN answered_at REAL NOT NULL DEFAULT 0;
ALTER TABLE allocations ADD COLUMN started_at REAL NOT NULL DEFAULT 0;
ALTER TABLE allocations DROP COLUMN checkpoint_at;
ALTER TABLE pods ADD COLUMN counted_boot TEXT;
UPDATE pods SET let_go_at = NULL, counted_boot = boot;
