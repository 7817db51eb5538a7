-- Jobs, their tasks and attempts.

-- name: add_job
INSERT INTO jobs (id, name, run, spec, spec_hash, snapshot, base_dir, created_at, owner, price_cap, currency,
                  data_manifests, resumed_from, results_dir, max_cost, git_commit)
VALUES (:id, :name, :run, :spec, :spec_hash, :snapshot, :base_dir, :created_at, :owner, :price_cap, :currency,
        :data_manifests, :resumed_from, :results_dir, :max_cost, :git_commit);

-- name: add_task
INSERT INTO tasks (job, id, params) VALUES (:job, :id, :params) ON CONFLICT (job, id) DO NOTHING;

-- What only one of many tasks has.
-- name: place_task
UPDATE tasks SET seq = :seq, items = :items, outcome = :outcome, reason = :reason, detail = :detail,
    exit_code = :exit_code, outcome_at = :outcome_at, stop_why = :stop_why, kept_from = :kept_from,
    results_dir = :results_dir
WHERE job = :job AND id = :id;

-- name: job
SELECT * FROM jobs WHERE id = :id;

-- name: live_job_of_name
SELECT id FROM jobs WHERE name = :name AND terminal_at IS NULL;

-- name: next_run
SELECT coalesce(max(run), 0) + 1 AS run FROM jobs WHERE name = :name;

-- name: jobs
SELECT * FROM jobs WHERE NOT :live_only OR terminal_at IS NULL ORDER BY created_at DESC, id LIMIT :limit;

-- name: active_jobs
SELECT * FROM jobs WHERE terminal_at IS NULL ORDER BY created_at, id;

-- name: job_names
SELECT DISTINCT name FROM jobs ORDER BY name;

-- name: newest_run
SELECT id, name, run FROM jobs WHERE name = :name ORDER BY run DESC LIMIT 1;

-- name: run_of_name
SELECT id, name, run FROM jobs WHERE name = :name AND run = :run;

-- name: runs_of_name
SELECT run FROM jobs WHERE name = :name ORDER BY run;

-- name: job_by_id
SELECT id, name, run FROM jobs WHERE id = :id;

-- name: tasks
SELECT * FROM tasks WHERE job = :job ORDER BY seq, id;

-- name: attempts
SELECT * FROM attempts WHERE job = :job ORDER BY n;

-- name: open_attempt
INSERT INTO attempts (job, n, opened_at)
SELECT :job, coalesce(max(n), 0) + 1, :now FROM attempts WHERE job = :job
RETURNING n;

-- name: note_first_rental
UPDATE jobs SET first_rental_at = coalesce(first_rental_at, :now), wait_since = NULL WHERE id = :job;

-- name: set_outcome
UPDATE jobs SET outcome = :outcome, reason = :reason, detail = :detail, exit_code = :exit_code, outcome_at = :now
WHERE id = :job AND outcome IS NULL;

-- name: set_task_outcomes
UPDATE tasks SET outcome = :outcome, reason = :reason, detail = :detail, exit_code = :exit_code, outcome_at = :now
WHERE job = :job AND outcome IS NULL;

-- name: set_task_outcome
UPDATE tasks SET outcome = :outcome, reason = :reason, detail = :detail, exit_code = :exit_code, outcome_at = :now
WHERE job = :job AND id = :task AND outcome IS NULL;

-- name: cancel_task
UPDATE tasks SET cancel_at = coalesce(cancel_at, :now) WHERE job = :job AND id = :task AND outcome IS NULL;

-- name: stop_task
UPDATE tasks SET stop_at = :now, stop_why = :why
WHERE job = :job AND id = :task AND outcome IS NULL AND stop_at IS NULL;

-- name: set_task_results
UPDATE tasks SET results_dir = :folder WHERE job = :job AND id = :task;

-- name: hold_job
UPDATE jobs SET held_until = :until WHERE id = :job AND held_until IS NULL;

-- name: end_hold
UPDATE jobs SET held_until = :now WHERE id = :job AND held_until > :now;

-- name: finish_job
UPDATE jobs SET terminal_at = :now WHERE id = :job AND terminal_at IS NULL;

-- name: wait_for_capacity
UPDATE jobs SET wait_since = :now WHERE id = :job AND wait_since IS NULL;

-- name: stop_waiting
UPDATE jobs SET wait_since = NULL WHERE id = :job AND wait_since IS NOT NULL;

-- name: cancel_job
UPDATE jobs SET cancel_at = coalesce(cancel_at, :now), cancel_now = max(cancel_now, :at_once)
WHERE id = :job AND terminal_at IS NULL;

-- name: extend_job
UPDATE jobs SET ttl_extra_s = ttl_extra_s + :extra_s WHERE id = :job AND terminal_at IS NULL;

-- name: edit_spec
UPDATE jobs SET spec = :spec, spec_hash = :spec_hash, price_cap = :price_cap WHERE id = :job AND terminal_at IS NULL;

-- The wish of a job whose machine is held is exchanged for a new one: the work is open again, its ttl counts from now.
-- name: go_on
UPDATE jobs SET spec = :spec, spec_hash = :spec_hash, snapshot = :snapshot, base_dir = :base_dir, owner = :owner,
    price_cap = :price_cap, data_manifests = :data_manifests, results_dir = :results_dir, max_cost = :max_cost, git_commit = :git_commit,
    replaced_n = :replaced_n, fresh = :fresh, first_rental_at = :now, ttl_extra_s = 0, wait_since = NULL,
    outcome = NULL, reason = NULL, detail = '', exit_code = NULL, outcome_at = NULL, held_until = NULL
WHERE id = :job AND terminal_at IS NULL AND cancel_at IS NULL AND outcome = 'failed' AND held_until > :now;

-- name: reopen_tasks
UPDATE tasks SET outcome = NULL, reason = NULL, detail = '', exit_code = NULL, outcome_at = NULL WHERE job = :job;

-- Only a run that had results there: another one's folder was never written.
-- name: move_results
UPDATE jobs SET results_dir = :aside WHERE results_dir = :folder AND id <> :job
    AND EXISTS (SELECT 1 FROM assignments a WHERE a.job = jobs.id AND a.results_at IS NOT NULL);

-- name: set_results_dir
UPDATE jobs SET results_dir = :folder WHERE id = :job;

-- name: unfinished_rentals
SELECT id FROM rentals WHERE job = :job AND phase <> 'gone' ORDER BY id;

-- What `gpujob ps` shows: a job with its newest rental, its newest run and its newest progress.
-- name: summaries
SELECT j.id, j.name, j.run, j.outcome, j.reason, j.detail, j.exit_code, j.created_at, j.cancel_at, j.wait_since,
       j.held_until, j.terminal_at, j.currency AS job_currency,
       (SELECT count(*) FROM attempts a WHERE a.job = j.id) AS attempts, j.replaced_n,
       (EXISTS (SELECT 1 FROM checkpoints c WHERE c.job = j.id)
        OR EXISTS (SELECT 1 FROM assignments b WHERE b.job = j.id AND b.resume_name <> '')) AS checkpointed,
       (SELECT count(*) FROM rentals m WHERE m.job = j.id AND m.provider_id IS NOT NULL) AS made,
       r.id AS rental, r.provider, r.region, r.phase, r."end", r.ready_at, r.reason AS rental_reason, r.offer,
       s.task, s.n, s.ordered_at, s."exit", json_extract(s."exit", '$.signalled') AS signalled,
       p.at AS progress_at, p.step, p.total, p.phase AS progress_phase,
       (SELECT q.alarms FROM progress q JOIN assignments b ON b.job = q.job AND b.task = q.task AND b.n = q.n
        WHERE q.job = j.id AND q.alarms <> '[]' AND b."exit" IS NULL ORDER BY q.at DESC LIMIT 1) AS alarms,
       (SELECT iif(count(*) = 0, 0, max(count(*), coalesce(json_extract(j.spec, '$.sweep.search.trials'), 0)))
        FROM tasks t WHERE t.job = j.id AND t.seq > 0) AS tasks,
       (SELECT count(*) FROM tasks t WHERE t.job = j.id AND t.seq > 0 AND t.outcome IS NOT NULL) AS tasks_over,
       (SELECT count(*) FROM assignments a JOIN rentals w ON w.id = a.rental
        WHERE a.job = j.id AND a.ordered_at IS NOT NULL AND a."exit" IS NULL AND w.phase = 'live') AS tasks_running,
       json_extract(j.spec, '$.retry.max') AS granted, r.interrupted_at, r.quiesced_at,
       (SELECT count(*) FROM rentals o WHERE o.job = j.id AND (o.interrupted_at IS NOT NULL
        OR o.reason IN ('interrupted', 'unreachable', 'bad-host', 'duplicate'))) AS lost
FROM jobs j
LEFT JOIN rentals r ON r.id = (SELECT id FROM rentals WHERE job = j.id ORDER BY attempt DESC LIMIT 1)
LEFT JOIN assignments s ON s.job = j.id
     AND (s.task, s.n) = (SELECT task, n FROM assignments WHERE job = j.id ORDER BY n DESC, task LIMIT 1)
LEFT JOIN progress p ON p.job = j.id
     AND (p.task, p.n) = (SELECT task, n FROM progress WHERE job = j.id ORDER BY at DESC LIMIT 1)
WHERE NOT :live_only OR j.terminal_at IS NULL
ORDER BY j.created_at DESC, j.id LIMIT :limit;
