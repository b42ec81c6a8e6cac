-- Which runs left stream events, and how did each end? One page, the last started first.
--
-- status   finished   its last event is `final`
--          failed     its last event is `error`
--          running    neither, and a live process runs its conversation
--          cut off    neither, and nobody does: its process died, or its reader went away
--                     (of a run whose process cannot be told, the age of the last event decides: 15 minutes)
-- Every filter may be left empty:
--   agent          the agent's id or name
--   status         one of the above
--   since, until   started within [since, until)
-- before   the first_id of the last row of the page before; empty for the first page
-- limit    how many rows; NULL for all

WITH spans AS (
    SELECT e.run_id, min(e.id) AS first_id, max(e.id) AS last_id, count(*) AS events, max(e.turn) AS turns,
           min(e.created_at) AS started_at, max(e.created_at) AS ended_at
      FROM agent_events e
     WHERE nullif(:'agent'::text, '') IS NULL
        OR e.agent_id = :'agent'::text
        OR e.agent_name = :'agent'::text
     GROUP BY e.run_id
)
SELECT s.run_id, first_event.agent_id, first_event.agent_name, ending.status, s.events, s.turns,
       s.started_at, s.ended_at, s.first_id, ending.output, first_event.conversation, first_event.resumes
  FROM spans s
 CROSS JOIN LATERAL (
       SELECT e.agent_id, e.agent_name, e.event ->> 'conversation' AS conversation, e.event ->> 'resumes' AS resumes
         FROM agent_events e
        WHERE e.run_id = s.run_id AND e.id = s.first_id) AS first_event
 CROSS JOIN LATERAL (
       SELECT everyturn_run_status(s.run_id, s.first_id, s.last_id) AS status,
              left(coalesce(
                  e.event ->> 'output',
                  e.event #>> '{result,output}',
                  e.event #>> '{error,message}',
                  CASE WHEN e.event ->> 'type' = 'error' THEN e.event ->> 'error' END), 500) AS output
         FROM agent_events e
        WHERE e.run_id = s.run_id AND e.id = s.last_id) AS ending
 WHERE (nullif(:'status'::text, '') IS NULL OR ending.status = :'status'::text)
   AND (nullif(:'since'::text, '') IS NULL OR s.started_at >= nullif(:'since'::text, '')::timestamptz)
   AND (nullif(:'until'::text, '') IS NULL OR s.started_at < nullif(:'until'::text, '')::timestamptz)
   AND (nullif(:'before'::text, '') IS NULL OR s.first_id < nullif(:'before'::text, '')::bigint)
 ORDER BY s.first_id DESC
 LIMIT :'limit'::bigint;
