-- W3, P5: what moved a run's git refs, in order, where the mirrors of several gateways have to follow.
-- `moves` is JSON: [[ref, commit], …]. A whole one stands for those before it, which are gone.

CREATE TABLE kept_pushes (
    run    BIGINT  NOT NULL REFERENCES executions (run),
    number BIGINT  NOT NULL CHECK (number >= 0),
    epoch  BIGINT  NOT NULL,
    moves  BYTEA   NOT NULL,
    base   TEXT,
    sha256 TEXT,
    size   BIGINT  CHECK ((size IS NULL) = (sha256 IS NULL)),
    whole  BOOLEAN NOT NULL,
    PRIMARY KEY (run, number)
);

-- W5: with the seal the run's refs are gone, and their packs are orphans.
CREATE FUNCTION moorage_forget_pushes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM kept_pushes WHERE run = NEW.run;
    RETURN NULL;
END $$;

CREATE TRIGGER executions_sealed_keep_no_pushes AFTER UPDATE OF sealed ON executions
    FOR EACH ROW WHEN (NEW.sealed AND NOT OLD.sealed) EXECUTE FUNCTION moorage_forget_pushes();
