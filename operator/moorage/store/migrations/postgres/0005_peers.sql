-- M5, F4, J6: what several gateways of one database tell each other.

-- A wake-up for those who wait, and no more: whoever hears it reads on from his cursor. By a trigger, so that what an
-- older version writes is told as well.
CREATE FUNCTION moorage_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('moorage_' || TG_RELID, left(NEW.run_uid, 1000));
    RETURN NULL;
END $$;

CREATE TRIGGER executions_changed AFTER INSERT OR UPDATE ON executions
    FOR EACH ROW EXECUTE FUNCTION moorage_changed();

-- Unlogged: after a crash of the server they come back within seconds, and till then nobody is taken for silent.
CREATE UNLOGGED TABLE heartbeats (
    run_uid      TEXT   PRIMARY KEY,
    epoch        BIGINT NOT NULL,
    progress_seq BIGINT NOT NULL,
    heard_at     BIGINT NOT NULL,
    progress_at  BIGINT NOT NULL
);

-- The one key by which all gateways of this database sign.
CREATE TABLE signing_key (
    only_one BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (only_one),
    key_id   TEXT    NOT NULL
);
