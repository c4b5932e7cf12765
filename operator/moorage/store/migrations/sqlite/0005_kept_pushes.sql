-- W3, P5: what moved a run's git refs, in order, where the mirrors of several gateways have to follow.
-- `moves` is JSON: [[ref, commit], …]. A whole one stands for those before it, which are gone.

CREATE TABLE kept_pushes (
    run    INTEGER NOT NULL REFERENCES executions (run),
    number INTEGER NOT NULL CHECK (number >= 0),
    epoch  INTEGER NOT NULL,
    moves  BLOB    NOT NULL,
    base   TEXT,
    sha256 TEXT,
    size   INTEGER CHECK ((size IS NULL) = (sha256 IS NULL)),
    whole  INTEGER NOT NULL CHECK (whole IN (0, 1)),
    PRIMARY KEY (run, number)
) WITHOUT ROWID;

-- W5: with the seal the run's refs are gone, and their packs are orphans.
CREATE TRIGGER executions_sealed_keep_no_pushes AFTER UPDATE OF sealed ON executions
WHEN NEW.sealed = 1 AND OLD.sealed = 0
BEGIN
    DELETE FROM kept_pushes WHERE run = NEW.run;
END;
