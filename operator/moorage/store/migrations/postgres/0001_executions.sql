-- J11: the two tables of facts, and what hangs on them. `run` is a row's short local name for its run_uid.

CREATE TABLE executions (
    run           BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_uid       TEXT    NOT NULL UNIQUE,
    tenant        TEXT    NOT NULL,
    session_id    TEXT    NOT NULL,
    workspace     TEXT,
    agent_id      TEXT,
    fire_id       TEXT,
    name          TEXT    NOT NULL,
    spec_hash     TEXT    NOT NULL,
    created_at    BIGINT  NOT NULL,
    status        TEXT    NOT NULL
                  CHECK (status IN ('RUNNING', 'PAUSED', 'RECOVERING', 'COMPLETED', 'FAILED', 'CANCELLED')),
    version       BIGINT  NOT NULL CHECK (version >= 1),
    fence_epoch   BIGINT  NOT NULL CHECK (fence_epoch >= 0),
    next_seq      BIGINT  NOT NULL CHECK (next_seq >= 0),
    head_hash     TEXT    CHECK ((head_hash IS NULL) = (next_seq = 0)),
    logical_time  BIGINT  NOT NULL,
    sealed        BOOLEAN NOT NULL,
    change_cursor BIGINT  NOT NULL UNIQUE
);

-- Taken under the advisory lock that is held until the commit, so that cursors become visible in their order.
CREATE SEQUENCE change_cursors;

CREATE INDEX executions_pending ON executions (tenant, created_at)
    WHERE NOT sealed AND status IN ('RUNNING', 'PAUSED', 'RECOVERING');

-- Apart from its row, which every append rewrites: a spec may hold a goal of hundreds of KiB.
CREATE TABLE execution_specs (
    run  BIGINT PRIMARY KEY REFERENCES executions (run),
    spec BYTEA  NOT NULL
);

-- `body` is the canonical JSON that was hashed, byte for byte: JSONB would write it anew.
CREATE TABLE execution_events (
    run       BIGINT NOT NULL REFERENCES executions (run),
    seq       BIGINT NOT NULL CHECK (seq BETWEEN 0 AND 4294967295),
    record_id TEXT   NOT NULL,
    hash      TEXT   NOT NULL,
    body      BYTEA  NOT NULL,
    PRIMARY KEY (run, seq),
    UNIQUE (run, record_id)
);

CREATE TABLE event_blobs (
    run    BIGINT NOT NULL REFERENCES executions (run),
    sha256 TEXT   NOT NULL,
    PRIMARY KEY (run, sha256)
);

CREATE TABLE snapshots (
    run              BIGINT NOT NULL REFERENCES executions (run),
    reducer_version  BIGINT NOT NULL,
    source_offset    BIGINT NOT NULL,
    source_hash      TEXT   NOT NULL,
    schema_version   BIGINT NOT NULL,
    epoch            BIGINT NOT NULL,
    state            BYTEA  NOT NULL,
    state_hash       TEXT   NOT NULL,
    PRIMARY KEY (run, reducer_version)
);

CREATE TABLE pods (
    pod_uid    TEXT   PRIMARY KEY,
    run        BIGINT NOT NULL REFERENCES executions (run),
    epoch      BIGINT NOT NULL,
    role       TEXT   NOT NULL,
    pod_name   TEXT   NOT NULL,
    commit_sha TEXT
);

CREATE TABLE sessions (
    tenant      TEXT   NOT NULL,
    session_id  TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    active_at   BIGINT NOT NULL,
    state       TEXT   NOT NULL,
    budget      BYTEA,
    idle_ttl_ms BIGINT,
    lineage     BYTEA  NOT NULL,
    end_record  BYTEA,
    version     BIGINT NOT NULL,
    PRIMARY KEY (tenant, session_id)
);

CREATE INDEX sessions_open ON sessions (active_at) WHERE end_record IS NULL;

-- J7: records are append-only. Per statement, so that one which would touch no row is refused as well.
CREATE FUNCTION moorage_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: no %', TG_TABLE_NAME, TG_OP USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE TRIGGER execution_events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON execution_events
    FOR EACH STATEMENT EXECUTE FUNCTION moorage_append_only();
CREATE TRIGGER executions_stay BEFORE DELETE OR TRUNCATE ON executions
    FOR EACH STATEMENT EXECUTE FUNCTION moorage_append_only();
CREATE TRIGGER execution_specs_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON execution_specs
    FOR EACH STATEMENT EXECUTE FUNCTION moorage_append_only();

-- I1, I2, J7: a head never goes back, a fence never falls, a seal is never broken.
CREATE FUNCTION moorage_only_forward() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'executions only go forward' USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE TRIGGER executions_only_forward BEFORE UPDATE ON executions FOR EACH ROW WHEN (
    NEW.next_seq < OLD.next_seq
    OR NEW.fence_epoch < OLD.fence_epoch
    OR NEW.sealed < OLD.sealed
    OR NEW.version < OLD.version
    OR NEW.run <> OLD.run
    OR NEW.run_uid <> OLD.run_uid
    OR NEW.spec_hash <> OLD.spec_hash
    OR (OLD.sealed AND NEW.next_seq <> OLD.next_seq)
) EXECUTE FUNCTION moorage_only_forward();

-- Also where somebody calls his session a replica's, which leaves ordinary triggers out.
ALTER TABLE execution_events ENABLE ALWAYS TRIGGER execution_events_append_only;
ALTER TABLE executions ENABLE ALWAYS TRIGGER executions_stay;
ALTER TABLE executions ENABLE ALWAYS TRIGGER executions_only_forward;
ALTER TABLE execution_specs ENABLE ALWAYS TRIGGER execution_specs_append_only;
