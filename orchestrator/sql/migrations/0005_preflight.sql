-- What was found on a machine: by the first look at it (run is ''), and by the look after a run's setup.
CREATE TABLE preflights (
    rental   TEXT NOT NULL REFERENCES rentals (id),
    run      TEXT NOT NULL DEFAULT '',      -- <task>.<n>
    job      TEXT NOT NULL,
    at       REAL NOT NULL,
    seconds  REAL NOT NULL,
    findings TEXT NOT NULL DEFAULT '[]',    -- name, klass, measured, wanted, next
    facts    TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (rental, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX preflights_job ON preflights (job);
