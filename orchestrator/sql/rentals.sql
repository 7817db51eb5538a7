-- Rentals: the durable intents. No query here deletes.

-- name: add_rental
INSERT INTO rentals (id, job, attempt, worker, provider, account, region, offer, phase, "end", wanted_end, end_reason,
                     reserve, nonce, epoch, created_at)
VALUES (:id, :job, :attempt, :worker, :provider, :account, :region, :offer, 'intent', :end, :end, :end_reason,
        :reserve, :nonce, :epoch, :now);

-- name: rental
SELECT * FROM rentals WHERE id = :id;

-- name: rentals_of_job
SELECT * FROM rentals WHERE job = :job ORDER BY attempt, id;

-- name: open_rentals
SELECT * FROM rentals WHERE phase <> 'gone' ORDER BY created_at, id;

-- name: tombstones
SELECT * FROM rentals WHERE tombstone_until > :now AND phase = 'gone' ORDER BY created_at, id;

-- name: name_instance
UPDATE rentals SET phase = :phase, provider_id = :provider_id, machine_id = :machine_id,
       create_outcome = :create_outcome
WHERE id = :id;

-- name: create_sent
UPDATE rentals SET create_sent_at = :now WHERE id = :id AND create_sent_at IS NULL AND phase = 'intent';

-- name: create_outcome
UPDATE rentals SET create_outcome = :outcome, detail = CASE WHEN :detail = '' THEN detail ELSE :detail END
WHERE id = :id;

-- name: release
UPDATE rentals SET phase = 'releasing', reason = :reason, detail = :detail, releasing_at = :now,
       interrupted_at = CASE WHEN :interrupted THEN coalesce(interrupted_at, :now) ELSE interrupted_at END
WHERE id = :id;

-- name: quiesced
UPDATE rentals SET quiesced_at = :now WHERE id = :id AND quiesced_at IS NULL;

-- name: gone
UPDATE rentals SET phase = 'gone', gone_at = :now, quiesced_at = coalesce(quiesced_at, :now), reserve = :reserve,
       wanted_reserve = NULL, tombstone_until = :tombstone_until
WHERE id = :id;

-- name: ready
UPDATE rentals SET ready_at = :now WHERE id = :id AND ready_at IS NULL;

-- name: want_end
UPDATE rentals SET wanted_end = :end, end_reason = :end_reason, reserve = :reserve, wanted_reserve = :wanted_reserve
WHERE id = :id;

-- name: confirm_end
UPDATE rentals SET "end" = wanted_end, reserve = coalesce(wanted_reserve, reserve), wanted_reserve = NULL
WHERE id = :id AND ("end" <> wanted_end OR wanted_reserve IS NOT NULL);

-- name: set_reserves
UPDATE rentals SET reserve = :reserve, wanted_reserve = :wanted_reserve, billed_until = :until WHERE id = :id;

-- name: destroy_sent
UPDATE rentals SET destroy_sent_at = coalesce(destroy_sent_at, :now) WHERE id = :id;

-- name: destroy_acked
UPDATE rentals SET destroy_acked_at = coalesce(destroy_acked_at, :now) WHERE id = :id;

-- Every create that was sent, and what became of it.
-- name: asked_of_providers
SELECT provider, create_outcome, reason, interrupted_at IS NOT NULL AS reclaimed, ready_at - create_sent_at AS ready_s
FROM rentals WHERE create_sent_at > :since;

-- How often spot machines were reclaimed, over how many hours, by provider.
-- name: spot_use
SELECT provider, count(interrupted_at) AS reclaims, sum(coalesce(gone_at, :now) - ready_at) / 3600.0 AS hours
FROM rentals WHERE json_extract(offer, '$.spot') AND ready_at IS NOT NULL AND created_at > :since GROUP BY provider;
