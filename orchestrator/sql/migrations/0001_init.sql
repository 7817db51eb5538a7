-- The books. Money is TEXT (decimal), times are REAL (UTC epoch seconds), documents are TEXT (JSON).
-- Rows of rentals and the ledger are never deleted: a forgotten row is a forgotten machine.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;                                   -- deployment, epoch

CREATE TABLE jobs (
    id             TEXT PRIMARY KEY,
    name           TEXT NOT NULL,
    run            INTEGER NOT NULL,
    spec           TEXT NOT NULL,
    spec_hash      TEXT NOT NULL,
    snapshot       TEXT NOT NULL DEFAULT '',
    base_dir       TEXT NOT NULL,
    created_at     REAL NOT NULL,
    owner          TEXT NOT NULL DEFAULT '',
    price_cap      TEXT,
    currency       TEXT NOT NULL DEFAULT 'USD',
    data_manifests TEXT NOT NULL DEFAULT '{}',
    resumed_from   TEXT NOT NULL DEFAULT '',
    cancel_at      REAL,
    cancel_now     INTEGER NOT NULL DEFAULT 0,
    first_rental_at REAL,
    ttl_extra_s    REAL NOT NULL DEFAULT 0,
    outcome        TEXT,
    reason         TEXT,
    detail         TEXT NOT NULL DEFAULT '',
    exit_code      INTEGER,
    outcome_at     REAL,
    held_until     REAL,
    terminal_at    REAL,
    results_dir    TEXT NOT NULL DEFAULT '',
    wait_since     REAL,
    max_cost       TEXT,
    git_commit     TEXT NOT NULL DEFAULT '',
    replaced_n     INTEGER NOT NULL DEFAULT 0,
    fresh          INTEGER NOT NULL DEFAULT 0,
    UNIQUE (name, run)
) STRICT;
-- One live run of a name: the same name is the same job.
CREATE UNIQUE INDEX one_live_job ON jobs (name) WHERE terminal_at IS NULL;

CREATE TABLE tasks (
    job     TEXT NOT NULL REFERENCES jobs (id),
    id      TEXT NOT NULL,
    params  TEXT NOT NULL DEFAULT '{}',
    outcome TEXT,
    PRIMARY KEY (job, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempts (
    job       TEXT NOT NULL REFERENCES jobs (id),
    n         INTEGER NOT NULL,
    opened_at REAL NOT NULL,
    PRIMARY KEY (job, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE rentals (
    id              TEXT PRIMARY KEY,
    job             TEXT NOT NULL REFERENCES jobs (id),
    attempt         INTEGER NOT NULL,
    worker          INTEGER NOT NULL DEFAULT 0,
    provider        TEXT NOT NULL,
    account         TEXT NOT NULL,
    region          TEXT NOT NULL,
    offer           TEXT NOT NULL,
    phase           TEXT NOT NULL CHECK (phase IN ('intent', 'live', 'releasing', 'gone')),
    "end"           REAL NOT NULL,
    wanted_end      REAL NOT NULL,
    end_reason      TEXT NOT NULL,
    reserve         TEXT NOT NULL,
    wanted_reserve  TEXT,                   -- takes effect once every timer has confirmed wanted_end
    nonce           TEXT NOT NULL,
    epoch           INTEGER NOT NULL,
    created_at      REAL NOT NULL,
    create_sent_at  REAL,
    create_outcome  TEXT,
    provider_id     TEXT,
    machine_id      TEXT NOT NULL DEFAULT '',
    ready_at        REAL,
    reason          TEXT,
    detail          TEXT NOT NULL DEFAULT '',
    releasing_at    REAL,
    destroy_sent_at REAL,
    destroy_acked_at REAL,
    quiesced_at     REAL,
    gone_at         REAL,
    billed_until    REAL,
    interrupted_at  REAL,
    tombstone_until REAL,
    FOREIGN KEY (job, attempt) REFERENCES attempts (job, n)
) STRICT;
-- OneOpenRental: each worker of a job has one machine that may still run its code. A plain job is worker 0;
-- the attempt would not do as the key, since every new rental opens a new attempt.
CREATE UNIQUE INDEX one_running_rental ON rentals (job, worker) WHERE quiesced_at IS NULL AND phase <> 'gone';
CREATE INDEX rentals_open ON rentals (phase) WHERE phase <> 'gone';
CREATE INDEX rentals_job ON rentals (job, attempt);
CREATE INDEX rentals_tombstones ON rentals (tombstone_until) WHERE tombstone_until IS NOT NULL;

CREATE TABLE assignments (
    job          TEXT NOT NULL,
    task         TEXT NOT NULL,
    n            INTEGER NOT NULL,
    rental       TEXT NOT NULL REFERENCES rentals (id),
    seal         TEXT NOT NULL DEFAULT '[]',
    resume_hash  TEXT NOT NULL DEFAULT '',
    resume_name  TEXT NOT NULL DEFAULT '',
    resume_step  INTEGER,
    committed_at REAL NOT NULL,
    ordered_at   REAL,
    exit         TEXT,
    closed_at    REAL,
    results_at   REAL,
    results_lost TEXT NOT NULL DEFAULT '',
    last_step    INTEGER,
    environment  TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (job, task, n),
    FOREIGN KEY (job, task) REFERENCES tasks (job, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoints (
    job         TEXT NOT NULL,
    task        TEXT NOT NULL,
    n           INTEGER NOT NULL,
    name        TEXT NOT NULL,
    step        INTEGER NOT NULL,
    hash        TEXT NOT NULL,
    bytes       INTEGER NOT NULL,
    parent      TEXT NOT NULL DEFAULT '',
    verified_at REAL NOT NULL,
    pruned_at   REAL,
    PRIMARY KEY (job, task, n, hash)
) STRICT, WITHOUT ROWID;

-- What was paid: one row a rental and kind, growing while it bills. Never pruned.
CREATE TABLE ledger (
    rental   TEXT NOT NULL REFERENCES rentals (id),
    kind     TEXT NOT NULL,               -- instance, disk, address, minimum
    amount   TEXT NOT NULL,
    currency TEXT NOT NULL,
    play     INTEGER NOT NULL DEFAULT 0,
    since    REAL NOT NULL,
    until    REAL NOT NULL,
    PRIMARY KEY (rental, kind)
) STRICT, WITHOUT ROWID;

-- What verbs ask of the controller. A verb only appends here and pokes the socket.
CREATE TABLE requests (
    id      INTEGER PRIMARY KEY,
    verb    TEXT NOT NULL,
    args    TEXT NOT NULL,
    at      REAL NOT NULL,
    done_at REAL,
    answer  TEXT
) STRICT;
CREATE INDEX requests_open ON requests (id) WHERE done_at IS NULL;

-- What was decided and what was seen to change, for people and for replay. Bounded.
CREATE TABLE journal (
    id     INTEGER PRIMARY KEY,
    at     REAL NOT NULL,
    job    TEXT NOT NULL DEFAULT '',
    rental TEXT NOT NULL DEFAULT '',
    kind   TEXT NOT NULL,
    text   TEXT NOT NULL,
    data   TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE INDEX journal_job ON journal (job, id);
CREATE INDEX journal_alarms ON journal (kind, job, rental, at) WHERE kind LIKE 'alarm:%';

-- Progress as last read from the log, one row a run: cheap to rewrite, lost without harm.
CREATE TABLE progress (
    job    TEXT NOT NULL,
    task   TEXT NOT NULL,
    n      INTEGER NOT NULL,
    at     REAL NOT NULL,
    step   REAL,
    total  REAL,
    sample TEXT NOT NULL DEFAULT '{}',
    phase  TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (job, task, n)
) STRICT, WITHOUT ROWID;

-- Pools that refused or reclaimed lately, and machines not to rent again.
CREATE TABLE resting (
    key    TEXT PRIMARY KEY,              -- pool:<pool> or machine:<provider>:<machine id>
    until  REAL NOT NULL,
    reason TEXT NOT NULL,
    count  INTEGER NOT NULL DEFAULT 1
) STRICT, WITHOUT ROWID;

-- Last prices, with their date, for plans without a network.
CREATE TABLE prices (
    provider TEXT NOT NULL,
    ask      TEXT NOT NULL,
    at       REAL NOT NULL,
    offers   TEXT NOT NULL,
    PRIMARY KEY (provider, ask)
) STRICT, WITHOUT ROWID;
