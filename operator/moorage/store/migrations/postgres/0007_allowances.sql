-- C5: what a tenant may take of models in a day and at once, and what it took.
-- A NULL is unlimited. `day` counts from the epoch, in UTC.

CREATE TABLE allowances (
    tenant      TEXT PRIMARY KEY,
    tokens      BIGINT CHECK (tokens >= 0),
    cost_micros BIGINT CHECK (cost_micros >= 0),
    models      BIGINT CHECK (models >= 0)
);

CREATE TABLE tenant_days (
    tenant           TEXT    NOT NULL,
    day              BIGINT NOT NULL,
    gateway          TEXT    NOT NULL,
    tokens           BIGINT NOT NULL,
    cost_micros      BIGINT NOT NULL,
    open_tokens      BIGINT NOT NULL CHECK (open_tokens >= 0),
    open_cost_micros BIGINT NOT NULL CHECK (open_cost_micros >= 0),
    open_requests    BIGINT NOT NULL CHECK (open_requests >= 0),
    PRIMARY KEY (tenant, day, gateway)
);
