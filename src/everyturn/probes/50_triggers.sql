-- triggers and plpgsql
-- lost: the log is append-only by custom, not by force
-- way out: Run CREATE EXTENSION plpgsql; as the database's owner, or use a server with triggers.
CREATE FUNCTION pg_temp.doctor_refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = 'raise_exception'; END $$;

CREATE TEMP TABLE doctor_log (id int, tags text[]) ON COMMIT DROP;

CREATE TRIGGER doctor_update BEFORE UPDATE OF id ON doctor_log
   FOR EACH ROW EXECUTE FUNCTION pg_temp.doctor_refuse();

CREATE TRIGGER doctor_truncate BEFORE TRUNCATE ON doctor_log
   FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.doctor_refuse();

INSERT INTO doctor_log VALUES (1, '{}');

UPDATE doctor_log SET tags = '{a}';

DO $$
BEGIN
    UPDATE doctor_log SET id = 2;
    RAISE EXCEPTION 'an update passed the trigger' USING ERRCODE = 'assert_failure';
EXCEPTION WHEN raise_exception THEN
    NULL;
END $$;

DO $$
BEGIN
    TRUNCATE doctor_log;
    RAISE EXCEPTION 'a truncate passed the trigger' USING ERRCODE = 'assert_failure';
EXCEPTION WHEN raise_exception THEN
    NULL;
END $$;

SELECT id = 1 AND tags = '{a}' FROM doctor_log;
