-- Remove the stream events from before a moment whose ids lie in (after, until].
--
-- types        only of these types; NULL: all
-- agent        only of this agent (its id or name); may be NULL
-- run_id       only of this run; may be NULL
-- keep_failed  keep every event of a run that has no `final`: it failed, or was cut off
-- dry_run      remove nothing, count only
WITH due AS MATERIALIZED (
    SELECT e.id, e.run_id, (pg_column_size(e.event) + 120)::bigint AS bytes
      FROM agent_events e
     WHERE e.id > :'after'::bigint
       AND e.id <= :'until'::bigint
       AND e.created_at < :'before'::timestamptz
       AND (:'types'::text[] IS NULL OR e.event ->> 'type' = ANY (:'types'::text[]))
       AND (:'agent'::text IS NULL OR e.agent_id = :'agent'::text OR e.agent_name = :'agent'::text)
       AND (:'run_id'::text IS NULL OR e.run_id = :'run_id'::text)
), doomed AS MATERIALIZED (
    SELECT d.id, d.bytes
      FROM due d
     WHERE NOT :'keep_failed'::boolean
        OR d.run_id IN (SELECT r.run_id
                          FROM (SELECT DISTINCT u.run_id FROM due u) AS r
                         WHERE EXISTS (SELECT FROM agent_events f
                                        WHERE f.run_id = r.run_id AND f.event ->> 'type' = 'final'))
), gone AS (
    DELETE FROM agent_events e
     USING doomed d
     WHERE e.id = d.id
       AND NOT :'dry_run'::boolean
)
SELECT count(*) AS events, coalesce(sum(d.bytes), 0)::bigint AS bytes
  FROM doomed d;
