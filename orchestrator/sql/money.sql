-- The ledger (never pruned), what rests, and the last prices.

-- name: ledger_row
SELECT * FROM ledger WHERE rental = :rental AND kind = :kind;

-- name: bill
INSERT INTO ledger (rental, kind, amount, currency, play, since, until)
VALUES (:rental, :kind, :amount, :currency, :play, :since, :until)
ON CONFLICT (rental, kind) DO UPDATE SET amount = excluded.amount, until = max(until, excluded.until);

-- name: ledger
SELECT l.*, r.job, r.provider, r.account, r.region FROM ledger l JOIN rentals r ON r.id = l.rental
WHERE (:job = '' OR r.job = :job) AND l.until >= :since
ORDER BY l.since, l.rental, l.kind;

-- name: billed_since
SELECT amount, currency FROM ledger WHERE until >= :since AND NOT play;

-- name: spent_of_job
SELECT l.amount, l.currency FROM ledger l JOIN rentals r ON r.id = l.rental WHERE r.job = :job;

-- name: spent_of_rentals
SELECT l.rental, l.amount FROM ledger l JOIN rentals r ON r.id = l.rental WHERE r.job = :job;

-- A gone rental reserves on only while its tombstone stands: a create that was never seen may still be born.
-- name: reserved_of_job
SELECT reserve, json_extract(offer, '$.currency') AS currency FROM rentals
WHERE job = :job AND (phase <> 'gone' OR tombstone_until > :now);

-- name: reserved_of_all
SELECT job, provider, phase <> 'gone' AS open, reserve, json_extract(offer, '$.currency') AS currency FROM rentals
WHERE phase <> 'gone' OR tombstone_until > :now;

-- name: spent_by_job
SELECT r.job, l.amount, l.currency, l.play FROM ledger l JOIN rentals r ON r.id = l.rental;

-- name: rest
INSERT INTO resting (key, until, reason) VALUES (:key, :until, :reason)
ON CONFLICT (key) DO UPDATE SET until = max(until, excluded.until), reason = excluded.reason, count = count + 1;

-- name: resting
SELECT key, reason FROM resting WHERE until > :now;

-- name: rest_count
SELECT count FROM resting WHERE key = :key AND until > :since;

-- name: forget_rest
DELETE FROM resting
WHERE until < CASE WHEN key LIKE 'machine:%' THEN :machines_before ELSE :before END;

-- name: put_prices
INSERT INTO prices (provider, ask, at, offers) VALUES (:provider, :ask, :at, :offers)
ON CONFLICT (provider, ask) DO UPDATE SET at = excluded.at, offers = excluded.offers;

-- name: prices
SELECT at, offers FROM prices WHERE provider = :provider AND ask = :ask;
