-- The books' own facts, and the count by which an old copy is recognised.

-- name: get_meta
SELECT value FROM meta WHERE key = :key;

-- name: put_meta
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: count_rentals
SELECT count(*) AS n FROM rentals;
