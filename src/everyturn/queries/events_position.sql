-- How far can the stream events be read so that none comes in late below? Ids are given out before their commit.
--
-- above         the newest id that was seen when this was asked before; NULL when it is asked first
-- settle        the age, in seconds, from which on a missing id is taken for one that was rolled back or removed
-- starts, ends  the missing ids of before, as ranges; which of them are there by now?
--
-- The ids missing between those that are there can only come from transactions that are open now: none of them is left
-- once `oldest` has reached the `next` of this moment.
WITH base AS (
    SELECT coalesce(:'above'::bigint, (SELECT max(e.id) - 10000 FROM agent_events e)) AS id
), fresh AS (
    SELECT e.id, e.created_at, lag(e.id, 1, :'above'::bigint) OVER (ORDER BY e.id) AS before
      FROM base
      JOIN agent_events e ON e.id > base.id
)
SELECT max(f.id) AS newest,
       string_agg((f.before + 1) || ' ' || (f.id - 1), ',' ORDER BY f.id)
           FILTER (WHERE f.id > f.before + 1
                     AND f.created_at > clock_timestamp() - make_interval(secs => :'settle'::float8)) AS missing,
       (SELECT string_agg(e.id::text, ',' ORDER BY e.id)
          FROM unnest(string_to_array(:'starts'::text, ',')::bigint[], string_to_array(:'ends'::text, ',')::bigint[])
               AS gap (first_id, last_id)
          JOIN agent_events e ON e.id BETWEEN gap.first_id AND gap.last_id) AS arrived,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next
  FROM fresh f;
