-- Assignments (one run of a task on a rental), their checkpoints and their progress.

-- name: assignment
SELECT * FROM assignments WHERE job = :job AND task = :task AND n = :n;

-- name: assignments
SELECT * FROM assignments WHERE job = :job ORDER BY task, n;

-- An earlier run of the task whose code may still be running: no agent's word, and its rental not quiesced.
-- name: running_before
SELECT a.n, a.rental FROM assignments a JOIN rentals r ON r.id = a.rental
WHERE a.job = :job AND a.task = :task AND a.closed_at IS NULL AND r.quiesced_at IS NULL;

-- name: add_assignment
INSERT INTO assignments (job, task, n, rental, seal, resume_hash, resume_name, resume_step, committed_at)
VALUES (:job, :task, :n, :rental, :seal, :resume_hash, :resume_name, :resume_step, :now);

-- Nothing has run with the old one: only a run that was never ordered is changed.
-- name: resume_other
UPDATE assignments SET seal = :seal, resume_hash = :resume_hash, resume_name = :resume_name, resume_step = :resume_step
WHERE job = :job AND task = :task AND n = :n AND ordered_at IS NULL AND "exit" IS NULL AND resume_hash <> :resume_hash;

-- name: ordered
UPDATE assignments SET ordered_at = coalesce(ordered_at, :now) WHERE job = :job AND task = :task AND n = :n;

-- name: begun
UPDATE assignments SET ordered_at = max(:at, committed_at)
WHERE job = :job AND task = :task AND n = :n AND ordered_at IS NULL;

-- name: store_exit
UPDATE assignments SET "exit" = :exit WHERE job = :job AND task = :task AND n = :n AND "exit" IS NULL;

-- name: closed
UPDATE assignments SET closed_at = coalesce(closed_at, :now), cause = coalesce(cause, :cause)
WHERE job = :job AND task = :task AND n = :n;

-- name: results_done
UPDATE assignments SET results_at = coalesce(results_at, :now) WHERE job = :job AND task = :task AND n = :n;

-- name: results_lost
UPDATE assignments SET results_lost = :detail
WHERE job = :job AND task = :task AND n = :n AND results_lost <> :detail AND results_at IS NULL;

-- name: last_step
UPDATE assignments SET last_step = max(coalesce(last_step, :step), :step) WHERE job = :job AND task = :task AND n = :n;

-- name: environment
UPDATE assignments SET environment = :environment WHERE job = :job AND task = :task AND n = :n;

-- name: checkpoint_durable
INSERT INTO checkpoints (job, task, n, name, step, hash, bytes, parent, verified_at)
VALUES (:job, :task, :n, :name, :step, :hash, :bytes, :parent, :verified_at)
ON CONFLICT (job, task, n, hash) DO UPDATE SET pruned_at = NULL;

-- name: checkpoint_pruned
UPDATE checkpoints SET pruned_at = coalesce(pruned_at, :now)
WHERE job = :job AND task = :task AND n = :n AND hash = :hash;

-- name: checkpoints
SELECT * FROM checkpoints WHERE job = :job AND pruned_at IS NULL ORDER BY task, n, step;

-- name: put_progress
INSERT INTO progress (job, task, n, at, step, total, sample, phase, transfer)
VALUES (:job, :task, :n, :at, :step, :total, :sample, :phase, coalesce(:transfer, '{}'))
ON CONFLICT (job, task, n) DO UPDATE SET at = excluded.at, step = coalesce(excluded.step, step),
    total = coalesce(excluded.total, total),
    sample = CASE excluded.sample WHEN '{}' THEN sample ELSE excluded.sample END,
    phase = CASE excluded.phase WHEN '' THEN phase ELSE excluded.phase END,
    transfer = coalesce(:transfer, transfer);

-- name: set_alarms
UPDATE progress SET alarms = :alarms WHERE job = :job AND task = :task AND n = :n AND alarms <> :alarms;

-- An alarm stops a run once, for one reason.
-- name: stop_run
UPDATE assignments SET stop = :why WHERE job = :job AND task = :task AND n = :n AND stop = '' AND "exit" IS NULL;

-- name: progress
SELECT * FROM progress WHERE job = :job ORDER BY task, n;

-- What done runs of a name took, newest first; one that was lost ended when its machine could run nothing any more.
-- name: past_runs
SELECT a.job, a.ordered_at, coalesce(r.create_sent_at, r.created_at) AS rented_at,
       coalesce(json_extract(a."exit", '$.at'), a.closed_at, r.quiesced_at, r.gone_at) AS ended_at,
       json_extract(r.offer, '$.gpu') || ':' || json_extract(r.offer, '$.gpu_count') AS gpu
FROM jobs j JOIN assignments a ON a.job = j.id JOIN rentals r ON r.id = a.rental
WHERE j.name = :name AND j.outcome = 'done' AND a.ordered_at IS NOT NULL AND ended_at IS NOT NULL
ORDER BY j.run DESC, a.n LIMIT :limit;

-- name: jobs_of_name
SELECT * FROM jobs WHERE name = :name AND run <= :run ORDER BY run DESC LIMIT :limit;

-- Saves of all runs of a name as their agents told them, newest first.
-- name: saves
SELECT l.data FROM journal l JOIN jobs j ON j.id = l.job
WHERE j.name = :name AND l.kind = 'agent:checkpoint' ORDER BY l.id DESC LIMIT :limit;

-- name: reports
SELECT * FROM reports WHERE job = :job AND (:task = '' OR task = :task) ORDER BY task, step;

-- A later run's word on a step takes the place of an earlier one's; the same run never says a step twice.
-- name: add_report
INSERT INTO reports (job, task, step, value, n, at) VALUES (:job, :task, :step, :value, :n, :at)
ON CONFLICT (job, task, step) DO UPDATE SET value = excluded.value, n = excluded.n, at = excluded.at
WHERE excluded.n >= reports.n;

-- name: read_to
UPDATE assignments SET read_to = :read_to, reported = :reported WHERE job = :job AND task = :task AND n = :n;

-- name: keep_reports
INSERT OR IGNORE INTO reports (job, task, step, value, n, at)
SELECT :job, task, step, value, 0, at FROM reports WHERE job = :old AND task = :task;

-- name: items
SELECT * FROM items WHERE job = :job ORDER BY task, item;

-- name: add_item
INSERT INTO items (job, task, item, state, detail, at) VALUES (:job, :task, :item, :state, :detail, :at)
ON CONFLICT (job, item) DO NOTHING;

-- name: put_preflight
INSERT INTO preflights (rental, run, job, at, seconds, findings, facts)
VALUES (:rental, :run, :job, :at, :seconds, :findings, :facts)
ON CONFLICT (rental, run) DO UPDATE SET at = excluded.at, seconds = excluded.seconds, findings = excluded.findings,
    facts = excluded.facts;

-- name: preflights
SELECT * FROM preflights WHERE job = :job ORDER BY at, rental, run;

-- What cards of a class measured after setup, the newest first; the numbers are null where the look had none.
-- name: benchmarks
SELECT json_extract(p.facts, '$.torch.benchmark.tflops') AS tflops,
       json_extract(p.facts, '$.torch.benchmark.allreduce_gbps') AS allreduce_gbps
FROM preflights p JOIN rentals r ON r.id = p.rental
WHERE p.run <> '' AND json_extract(r.offer, '$.gpu') = :gpu AND json_extract(r.offer, '$.gpu_count') = :count
  AND tflops IS NOT NULL AND p.rental <> :but
ORDER BY p.at DESC LIMIT 50;
