-- P1: a snapshot says which gateway took it. What was taken before isn't signed, and is ignored.

ALTER TABLE snapshots ADD COLUMN signature TEXT NOT NULL DEFAULT '';
