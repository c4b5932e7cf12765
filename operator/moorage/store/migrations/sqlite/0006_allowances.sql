-- C5: what a tenant may take of models in a day and at once, and what it took.
-- A NULL is unlimited. `day` counts from the epoch, in UTC.

CREATE TABLE allowances (
    tenant      TEXT PRIMARY KEY,
    tokens      INTEGER CHECK (tokens >= 0),
    cost_micros INTEGER CHECK (cost_micros >= 0),
    models      INTEGER CHECK (models >= 0)
) WITHOUT ROWID;

CREATE TABLE tenant_days (
    tenant           TEXT    NOT NULL,
    day              INTEGER NOT NULL,
    gateway          TEXT    NOT NULL,
    tokens           INTEGER NOT NULL,
    cost_micros      INTEGER NOT NULL,
    open_tokens      INTEGER NOT NULL CHECK (open_tokens >= 0),
    open_cost_micros INTEGER NOT NULL CHECK (open_cost_micros >= 0),
    open_requests    INTEGER NOT NULL CHECK (open_requests >= 0),
    PRIMARY KEY (tenant, day, gateway)
) WITHOUT ROWID;
