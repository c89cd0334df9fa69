-- Which job holds which unique key, on either plane.

-- name: release_claims
-- Let go of unique keys, each only if this job holds it.
-- rows:  none
-- locks: unique-claim rows
DELETE FROM awa.job_unique_claims AS claim
USING unnest(%(unique_keys)s::bytea[], %(job_ids)s::bigint[]) AS released (unique_key, job_id)
WHERE claim.unique_key = released.unique_key AND claim.job_id = released.job_id;

-- name: acquire_claims
-- Take unique keys; a key that another job holds is absent from the answer.
-- rows:  the jobs that hold their key now
-- locks: unique-claim rows, in key order, waiting for whoever is just taking one
INSERT INTO awa.job_unique_claims AS claim (unique_key, job_id)
SELECT unique_key, job_id
FROM unnest(%(unique_keys)s::bytea[], %(job_ids)s::bigint[]) AS wanted (unique_key, job_id)
ORDER BY unique_key
ON CONFLICT (unique_key) DO UPDATE
SET job_id = excluded.job_id
WHERE claim.job_id = excluded.job_id
RETURNING job_id;
