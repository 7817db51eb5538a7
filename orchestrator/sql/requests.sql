-- What verbs ask of the controller, and the journal.

-- name: ask
INSERT INTO requests (verb, args, at) VALUES (:verb, :args, :now) RETURNING id;

-- name: open_requests
SELECT id, verb, args, at FROM requests WHERE done_at IS NULL ORDER BY id;

-- name: answer
UPDATE requests SET done_at = :now, answer = :answer WHERE id = :id AND done_at IS NULL;

-- name: get_answer
SELECT done_at, answer FROM requests WHERE id = :id;

-- name: forget_requests
DELETE FROM requests WHERE done_at < :before;

-- name: add_journal
INSERT INTO journal (at, job, rental, kind, text, data) VALUES (:at, :job, :rental, :kind, :text, :data) RETURNING id;

-- name: prune_journal
DELETE FROM journal WHERE id <= :upto;

-- name: journal
SELECT * FROM journal WHERE (:job = '' OR job = :job) AND id > :since_id ORDER BY id LIMIT :limit;

-- name: newest_journal
SELECT * FROM (SELECT * FROM journal WHERE (:job = '' OR job = :job) ORDER BY id DESC LIMIT :limit) ORDER BY id;

-- name: alarmed_since
SELECT 1 FROM journal WHERE kind = :kind AND kind LIKE 'alarm:%' AND job = :job AND rental = :rental AND at > :since LIMIT 1;
