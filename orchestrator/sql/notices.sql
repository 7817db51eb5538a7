-- Notifications on their way to targets.

-- name: last_journal
SELECT coalesce(max(id), 0) AS id FROM journal;

-- name: add_notice
INSERT INTO notices (job, target, topic, at, title, body, next_at)
SELECT :job, :target, :topic, :now, :title, :body, :now
WHERE NOT EXISTS (
    SELECT 1 FROM notices WHERE job = :job AND target = :target AND topic = :topic AND at > :since);

-- The oldest of each target: however many wait for one that fails, they hide nothing of another.
-- name: due_notices
SELECT * FROM notices WHERE id IN (
    SELECT min(id) FROM notices WHERE over = 0 AND next_at <= :now GROUP BY target) ORDER BY id;

-- name: notice_tried
UPDATE notices SET tries = tries + 1, next_at = :next_at, sent_at = :sent_at, over = :over, error = :error
WHERE id = :id AND over = 0;

-- The newest of each target, of one job or of all.
-- name: newest_notices
SELECT * FROM notices WHERE id IN (
    SELECT max(id) FROM notices WHERE (:job = '' OR job = :job) AND tries > 0 GROUP BY target) ORDER BY target;

-- name: forget_notices
DELETE FROM notices WHERE over = 1 AND at < :before;
