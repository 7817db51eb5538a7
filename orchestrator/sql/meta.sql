-- The books' own facts, and the count by which an old copy is recognised.

-- name: get_meta
SELECT value FROM meta WHERE key = :key;

-- name: put_meta
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- What only ever grows: rentals opened, rentals gone, jobs over. An older copy of the books has fewer.
-- name: milestones
SELECT (SELECT count(*) + count(gone_at) FROM rentals) + (SELECT count(terminal_at) FROM jobs) AS n;
