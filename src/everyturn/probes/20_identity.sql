-- identity columns and RETURNING
-- lost: turns have no append order
-- way out: Use PostgreSQL 14 or newer, or a service built on it.
CREATE TEMP TABLE doctor_identity (seq bigint GENERATED ALWAYS AS IDENTITY, id uuid DEFAULT gen_random_uuid())
    ON COMMIT DROP;

INSERT INTO doctor_identity DEFAULT VALUES
RETURNING seq = 1 AND id IS NOT NULL;
