-- The schema, its one type and its sequences.
-- contract: schema, sections 3.7 and 6; queue-storage/layout, section 10

-- A role that may not create schemas still installs into one that its DBA made for it: CREATE SCHEMA
-- IF NOT EXISTS would ask for the privilege first and look second.
DO $$
BEGIN
    IF to_regnamespace('awa') IS NULL THEN
        CREATE SCHEMA awa;
    END IF;
END
$$;

-- The order is the order of the bits in a job's unique_states, leftmost first.
CREATE TYPE awa.job_state AS ENUM (
    'scheduled',
    'available',
    'running',
    'completed',
    'retryable',
    'failed',
    'cancelled',
    'waiting_external'
);

-- Two sequences of job ids, one a plane: the same number can name two jobs while a fleet moves.
CREATE SEQUENCE awa.jobs_id_seq;    -- canonical plane
CREATE SEQUENCE awa.job_id_seq;     -- queue storage

-- Receipts and batches of queue storage. The two sequences of each lane are made on the lane's first use.
CREATE SEQUENCE awa.ready_claim_attempt_batch_id_seq;
CREATE SEQUENCE awa.lease_claim_receipt_id_seq;
CREATE SEQUENCE awa.lease_claim_batch_id_seq;
CREATE SEQUENCE awa.lease_claim_closure_batch_id_seq;
CREATE SEQUENCE awa.receipt_completion_batch_id_seq;
