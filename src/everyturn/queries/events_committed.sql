-- Did these events, sent in one statement whose answer was lost, come to be stored? The events of a statement share one
-- created_at, and their ids follow that of the last event that was acknowledged.
SELECT created_at
  FROM agent_events
 WHERE run_id = ANY (:'runs'::text[])
   AND id > :'after'::bigint
 GROUP BY created_at
HAVING array_agg(run_id ORDER BY id) = :'runs'::text[]
   AND array_agg(event ORDER BY id) = :'events'::jsonb[];
