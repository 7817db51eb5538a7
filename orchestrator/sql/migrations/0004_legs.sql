-- A job of many tasks: the legs of a sweep, the slices of a batch, replicas.
ALTER TABLE tasks ADD COLUMN seq INTEGER NOT NULL DEFAULT 0;        -- the order in which they are wanted
ALTER TABLE tasks ADD COLUMN items TEXT NOT NULL DEFAULT '[]';      -- of a slice: paths (JSON)
ALTER TABLE tasks ADD COLUMN reason TEXT;
ALTER TABLE tasks ADD COLUMN detail TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN exit_code INTEGER;
ALTER TABLE tasks ADD COLUMN outcome_at REAL;
ALTER TABLE tasks ADD COLUMN cancel_at REAL;                        -- the user wants this one to end
ALTER TABLE tasks ADD COLUMN stop_at REAL;                          -- its reports say that it is not worth its money
ALTER TABLE tasks ADD COLUMN stop_why TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN kept_from TEXT NOT NULL DEFAULT '';    -- the earlier run's job that did it already
ALTER TABLE tasks ADD COLUMN results_dir TEXT NOT NULL DEFAULT '';
-- Bytes of the metric's log that were read into `reports`, and how many reports of the run there were.
ALTER TABLE assignments ADD COLUMN read_to INTEGER NOT NULL DEFAULT 0;
ALTER TABLE assignments ADD COLUMN reported INTEGER NOT NULL DEFAULT 0;

-- Values of the sweep's metric. The same step heard again by a later run is the same report; NULL is NaN.
CREATE TABLE reports (
    job   TEXT NOT NULL,
    task  TEXT NOT NULL,
    step  INTEGER NOT NULL,
    value REAL,
    n     INTEGER NOT NULL,               -- the run that it was heard from
    at    REAL NOT NULL,
    PRIMARY KEY (job, task, step)
) STRICT, WITHOUT ROWID;

-- Items of a batch that are over: done and home, or failed with the reason.
CREATE TABLE items (
    job    TEXT NOT NULL,
    task   TEXT NOT NULL,
    item   TEXT NOT NULL,
    state  TEXT NOT NULL CHECK (state IN ('done', 'failed')),
    detail TEXT NOT NULL DEFAULT '',
    at     REAL NOT NULL,
    PRIMARY KEY (job, item)
) STRICT, WITHOUT ROWID;
