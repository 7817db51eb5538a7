-- Rows that are made again from what machines and files say, after the books were lost (`adopt`, `prune`), and the
-- one way to end a liability by hand (`forget`).

-- name: restore_attempt
INSERT INTO attempts (job, n, opened_at) VALUES (:job, :n, :now) ON CONFLICT (job, n) DO NOTHING;

-- name: restore_rental
INSERT INTO rentals (id, job, attempt, provider, account, region, offer, phase, "end", wanted_end, end_reason, reserve,
                     nonce, epoch, created_at, create_sent_at, create_outcome, provider_id, machine_id, ready_at)
VALUES (:id, :job, :attempt, :provider, :account, :region, :offer, :phase, :end, :end, :end_reason, :reserve,
        :nonce, :epoch, :created_at, :created_at, :create_outcome, :provider_id, :machine_id, :ready_at);

-- name: restore_run
INSERT INTO assignments (job, task, n, rental, seal, committed_at, ordered_at, "exit", closed_at)
VALUES (:job, :task, :n, :rental, :seal, :at, :at, :exit, :closed_at)
ON CONFLICT (job, task, n) DO NOTHING;

-- name: restore_end
UPDATE rentals SET "end" = :end, wanted_end = :end, wanted_reserve = NULL, reserve = :reserve WHERE id = :id;

-- name: restore_clock
UPDATE jobs SET first_rental_at = :first_rental_at, ttl_extra_s = :ttl_extra_s, wait_since = NULL WHERE id = :job;

-- name: name_is_taken
SELECT 1 FROM jobs WHERE name = :name AND (terminal_at IS NULL OR run = :run) LIMIT 1;

-- name: extend_tombstone
UPDATE rentals SET tombstone_until = :until WHERE id = :id AND phase = 'gone';

-- name: rental_of_instance
SELECT id FROM rentals WHERE provider_id = :provider_id ORDER BY created_at DESC LIMIT 1;

-- name: all_rentals
SELECT * FROM rentals ORDER BY created_at, id;
