-- C5: what a tenant may take of models in a day and at once, what it took, and what is under way.
-- A NULL is unlimited. `day` counts from the epoch, in UTC.

CREATE TABLE allowances (
    tenant      TEXT PRIMARY KEY,
    tokens      BIGINT CHECK (tokens >= 0),
    cost_micros BIGINT CHECK (cost_micros >= 0),
    models      BIGINT CHECK (models >= 0)
);

CREATE TABLE tenant_days (
    tenant      TEXT    NOT NULL,
    day         BIGINT NOT NULL,
    tokens      BIGINT NOT NULL,
    cost_micros BIGINT NOT NULL,
    PRIMARY KEY (tenant, day)
);

-- One for each request to a model that isn't answered, at its worst case.
CREATE TABLE tenant_requests (
    tenant      TEXT    NOT NULL,
    request_id  TEXT    NOT NULL,
    day         BIGINT NOT NULL,
    gateway     TEXT    NOT NULL,
    tokens      BIGINT NOT NULL CHECK (tokens >= 0),
    cost_micros BIGINT NOT NULL CHECK (cost_micros >= 0),
    PRIMARY KEY (tenant, request_id)
);
