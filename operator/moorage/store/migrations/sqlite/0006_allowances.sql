-- C5: what a tenant may take of models in a day and at once, what it took, and what is under way.
-- A NULL is unlimited. `day` counts from the epoch, in UTC.

CREATE TABLE allowances (
    tenant      TEXT PRIMARY KEY,
    tokens      INTEGER CHECK (tokens >= 0),
    cost_micros INTEGER CHECK (cost_micros >= 0),
    models      INTEGER CHECK (models >= 0)
) WITHOUT ROWID;

CREATE TABLE tenant_days (
    tenant      TEXT    NOT NULL,
    day         INTEGER NOT NULL,
    tokens      INTEGER NOT NULL,
    cost_micros INTEGER NOT NULL,
    PRIMARY KEY (tenant, day)
) WITHOUT ROWID;

-- One for each request to a model that isn't answered, at its worst case.
CREATE TABLE tenant_requests (
    tenant      TEXT    NOT NULL,
    request_id  TEXT    NOT NULL,
    day         INTEGER NOT NULL,
    gateway     TEXT    NOT NULL,
    tokens      INTEGER NOT NULL CHECK (tokens >= 0),
    cost_micros INTEGER NOT NULL CHECK (cost_micros >= 0),
    PRIMARY KEY (tenant, request_id)
) WITHOUT ROWID;
