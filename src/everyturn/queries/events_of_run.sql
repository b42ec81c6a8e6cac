-- What happened in this run, event by event, after a given event? (limit NULL: all; types NULL: every type)
SELECT e.id, e.run_id, e.agent_id, e.agent_name, e.turn, e.tool_name, e.tool_call_id, e.internal_call_id, e.event,
       e.created_at
  FROM agent_events e
 WHERE e.run_id = :'run_id'::text
   AND e.id > :'after'::bigint
   AND (:'types'::text[] IS NULL OR e.event ->> 'type' = ANY (:'types'::text[]))
 -- Not by the primary key, which would be read from `after` to its end for the few rows of one run.
 ORDER BY e.id + 0
 LIMIT :'limit'::bigint;
