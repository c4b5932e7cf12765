-- J11: the two tables of facts, and what hangs on them. `run` is a row's short local name for its run_uid.

CREATE TABLE executions (
    run           INTEGER PRIMARY KEY,
    run_uid       TEXT    NOT NULL UNIQUE,
    tenant        TEXT    NOT NULL,
    session_id    TEXT    NOT NULL,
    workspace     TEXT,
    agent_id      TEXT,
    fire_id       TEXT,
    name          TEXT    NOT NULL,
    spec_hash     TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    status        TEXT    NOT NULL
                  CHECK (status IN ('RUNNING', 'PAUSED', 'RECOVERING', 'COMPLETED', 'FAILED', 'CANCELLED')),
    version       INTEGER NOT NULL CHECK (version >= 1),
    fence_epoch   INTEGER NOT NULL CHECK (fence_epoch >= 0),
    next_seq      INTEGER NOT NULL CHECK (next_seq >= 0),
    head_hash     TEXT    CHECK ((head_hash IS NULL) = (next_seq = 0)),
    logical_time  INTEGER NOT NULL,
    sealed        INTEGER NOT NULL CHECK (sealed IN (0, 1)),
    change_cursor INTEGER NOT NULL UNIQUE
);

CREATE INDEX executions_pending ON executions (tenant, created_at)
    WHERE sealed = 0 AND status IN ('RUNNING', 'PAUSED', 'RECOVERING');

-- Apart from its row, which every append rewrites: a spec may hold a goal of hundreds of KiB.
CREATE TABLE execution_specs (
    run  INTEGER PRIMARY KEY REFERENCES executions (run),
    spec BLOB    NOT NULL
);

-- `place` is run * 2^32 + seq: the table's own key, so that an append touches one tree fewer and a journal lies in order.
CREATE TABLE execution_events (
    place     INTEGER PRIMARY KEY CHECK (place = run * 4294967296 + seq),
    run       INTEGER NOT NULL REFERENCES executions (run),
    seq       INTEGER NOT NULL CHECK (seq BETWEEN 0 AND 4294967295),
    record_id TEXT    NOT NULL,
    hash      TEXT    NOT NULL,
    body      BLOB    NOT NULL,
    UNIQUE (run, record_id)
);

CREATE TABLE event_blobs (
    run    INTEGER NOT NULL REFERENCES executions (run),
    sha256 TEXT    NOT NULL,
    PRIMARY KEY (run, sha256)
) WITHOUT ROWID;

CREATE TABLE snapshots (
    run              INTEGER NOT NULL REFERENCES executions (run),
    reducer_version  INTEGER NOT NULL,
    source_offset    INTEGER NOT NULL,
    source_hash      TEXT    NOT NULL,
    schema_version   INTEGER NOT NULL,
    epoch            INTEGER NOT NULL,
    state            BLOB    NOT NULL,
    state_hash       TEXT    NOT NULL,
    PRIMARY KEY (run, reducer_version)
);

CREATE TABLE pods (
    pod_uid    TEXT    PRIMARY KEY,
    run        INTEGER NOT NULL REFERENCES executions (run),
    epoch      INTEGER NOT NULL,
    role       TEXT    NOT NULL,
    pod_name   TEXT    NOT NULL,
    commit_sha TEXT
);

CREATE TABLE sessions (
    tenant      TEXT    NOT NULL,
    session_id  TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    active_at   INTEGER NOT NULL,
    state       TEXT    NOT NULL,
    budget      BLOB,
    idle_ttl_ms INTEGER,
    lineage     BLOB    NOT NULL,
    end_record  BLOB,
    version     INTEGER NOT NULL,
    PRIMARY KEY (tenant, session_id)
);

CREATE INDEX sessions_open ON sessions (active_at) WHERE end_record IS NULL;

-- J7: records are append-only. REPLACE deletes without firing delete triggers, so an INSERT over any key is refused first.
CREATE TRIGGER execution_events_refuse_update BEFORE UPDATE ON execution_events
BEGIN
    SELECT RAISE(ABORT, 'execution_events is append-only: no UPDATE');
END;

CREATE TRIGGER execution_events_refuse_delete BEFORE DELETE ON execution_events
BEGIN
    SELECT RAISE(ABORT, 'execution_events is append-only: no DELETE');
END;

CREATE TRIGGER execution_events_refuse_replace BEFORE INSERT ON execution_events
WHEN EXISTS (SELECT 1 FROM execution_events WHERE place = NEW.place)
    OR EXISTS (SELECT 1 FROM execution_events WHERE run = NEW.run AND record_id = NEW.record_id)
BEGIN
    SELECT RAISE(ABORT, 'execution_events is append-only: no INSERT over an existing record');
END;

-- I1, I2, J7: a head never goes back, a fence never falls, a seal is never broken, a run's row never goes.
CREATE TRIGGER executions_refuse_going_back BEFORE UPDATE ON executions
WHEN NEW.next_seq < OLD.next_seq
    OR NEW.fence_epoch < OLD.fence_epoch
    OR NEW.sealed < OLD.sealed
    OR NEW.version < OLD.version
    OR NEW.run <> OLD.run
    OR NEW.run_uid <> OLD.run_uid
    OR NEW.spec_hash <> OLD.spec_hash
    OR (OLD.sealed = 1 AND NEW.next_seq <> OLD.next_seq)
BEGIN
    SELECT RAISE(ABORT, 'executions only go forward');
END;

CREATE TRIGGER executions_refuse_delete BEFORE DELETE ON executions
BEGIN
    SELECT RAISE(ABORT, 'executions are sealed, never deleted');
END;

CREATE TRIGGER executions_refuse_replace BEFORE INSERT ON executions
WHEN EXISTS (SELECT 1 FROM executions WHERE run_uid = NEW.run_uid OR run = NEW.run)
    OR EXISTS (SELECT 1 FROM executions WHERE change_cursor = NEW.change_cursor)
BEGIN
    SELECT RAISE(ABORT, 'executions are unique: no INSERT over an existing run');
END;
