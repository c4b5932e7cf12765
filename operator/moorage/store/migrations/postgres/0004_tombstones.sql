-- J7: what stands for a journal whose retention is over. `said` is the canonical JSON that `signature` is over.

CREATE TABLE journal_tombstones (
    run       BIGINT PRIMARY KEY REFERENCES executions (run),
    first_seq BIGINT NOT NULL CHECK (first_seq = 0),
    last_seq  BIGINT NOT NULL CHECK (last_seq >= first_seq),
    hash      TEXT   NOT NULL,
    said      BYTEA  NOT NULL,
    signature TEXT   NOT NULL CHECK (signature <> '')
);

-- Only of a sealed journal, as a whole, once (its key sees to that).
CREATE FUNCTION moorage_only_sealed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM executions
        WHERE run = NEW.run AND sealed AND next_seq = NEW.last_seq + 1 AND head_hash = NEW.hash
    ) THEN
        RAISE EXCEPTION 'journal_tombstones is append-only: only a sealed journal is pruned, as a whole and once'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER journal_tombstones_of_the_sealed BEFORE INSERT ON journal_tombstones
    FOR EACH ROW EXECUTE FUNCTION moorage_only_sealed();
CREATE TRIGGER journal_tombstones_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON journal_tombstones
    FOR EACH STATEMENT EXECUTE FUNCTION moorage_append_only();

-- Per statement still, and so refused as well where it would touch no row.
CREATE FUNCTION moorage_only_pruned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM gone) OR EXISTS (
        SELECT 1 FROM gone WHERE NOT EXISTS (
            SELECT 1 FROM journal_tombstones t WHERE t.run = gone.run AND gone.seq BETWEEN t.first_seq AND t.last_seq
        )
    ) THEN
        RAISE EXCEPTION '% is append-only: no %', TG_TABLE_NAME, TG_OP USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;

DROP TRIGGER execution_events_append_only ON execution_events;
CREATE TRIGGER execution_events_append_only BEFORE UPDATE OR TRUNCATE ON execution_events
    FOR EACH STATEMENT EXECUTE FUNCTION moorage_append_only();
CREATE TRIGGER execution_events_only_pruned AFTER DELETE ON execution_events
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION moorage_only_pruned();

ALTER TABLE journal_tombstones ENABLE ALWAYS TRIGGER journal_tombstones_of_the_sealed;
ALTER TABLE journal_tombstones ENABLE ALWAYS TRIGGER journal_tombstones_append_only;
ALTER TABLE execution_events ENABLE ALWAYS TRIGGER execution_events_append_only;
ALTER TABLE execution_events ENABLE ALWAYS TRIGGER execution_events_only_pruned;
