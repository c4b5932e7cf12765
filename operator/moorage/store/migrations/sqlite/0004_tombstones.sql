-- J7: what stands for a journal whose retention is over. `said` is the canonical JSON that `signature` is over.

CREATE TABLE journal_tombstones (
    run       INTEGER PRIMARY KEY REFERENCES executions (run),
    first_seq INTEGER NOT NULL CHECK (first_seq = 0),
    last_seq  INTEGER NOT NULL CHECK (last_seq >= first_seq),
    hash      TEXT    NOT NULL,
    said      BLOB    NOT NULL,
    signature TEXT    NOT NULL CHECK (signature <> '')
);

-- Only of a sealed journal, as a whole, once.
CREATE TRIGGER journal_tombstones_of_the_sealed BEFORE INSERT ON journal_tombstones
WHEN NOT EXISTS (
        SELECT 1 FROM executions
        WHERE run = NEW.run AND sealed = 1 AND next_seq = NEW.last_seq + 1 AND head_hash = NEW.hash
    )
    OR EXISTS (SELECT 1 FROM journal_tombstones WHERE run = NEW.run)
BEGIN
    SELECT RAISE(ABORT, 'journal_tombstones is append-only: only a sealed journal is pruned, as a whole and once');
END;

CREATE TRIGGER journal_tombstones_refuse_update BEFORE UPDATE ON journal_tombstones
BEGIN
    SELECT RAISE(ABORT, 'journal_tombstones is append-only: no UPDATE');
END;

CREATE TRIGGER journal_tombstones_refuse_delete BEFORE DELETE ON journal_tombstones
BEGIN
    SELECT RAISE(ABORT, 'journal_tombstones is append-only: no DELETE');
END;

DROP TRIGGER execution_events_refuse_delete;

CREATE TRIGGER execution_events_refuse_delete BEFORE DELETE ON execution_events
WHEN NOT EXISTS (
    SELECT 1 FROM journal_tombstones WHERE run = OLD.run AND OLD.seq BETWEEN first_seq AND last_seq
)
BEGIN
    SELECT RAISE(ABORT, 'execution_events is append-only: no DELETE');
END;
