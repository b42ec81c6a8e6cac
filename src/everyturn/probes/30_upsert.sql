-- ON CONFLICT
-- lost: tools, caches and verdicts of workers cannot be written twice without doubling
-- way out: Use PostgreSQL 14 or newer, or a service built on it.
CREATE TEMP TABLE doctor_upsert (name text PRIMARY KEY, n int) ON COMMIT DROP;

INSERT INTO doctor_upsert VALUES ('a', 1);

INSERT INTO doctor_upsert VALUES ('a', 2)
    ON CONFLICT (name) DO UPDATE SET n = excluded.n
RETURNING n = 2;
