-- What is to be told to a target of the config, until it was told: never an address, only the target's name.
CREATE TABLE notices (
    id      INTEGER PRIMARY KEY,
    job     TEXT NOT NULL,
    target  TEXT NOT NULL,
    topic   TEXT NOT NULL,                  -- of what kind: once an hour for the same of a job and target
    at      REAL NOT NULL,
    title   TEXT NOT NULL,
    body    TEXT NOT NULL,
    tries   INTEGER NOT NULL DEFAULT 0,
    next_at REAL NOT NULL,
    sent_at REAL,
    over    INTEGER NOT NULL DEFAULT 0,     -- sent, or given up
    error   TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX notices_open ON notices (next_at) WHERE over = 0;
CREATE INDEX notices_same ON notices (job, target, topic, at);
