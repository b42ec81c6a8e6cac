-- Put masked events in place of those with these ids. given: a JSON array of {id, event}.
UPDATE agent_events e
   SET event = g -> 'event'
  FROM jsonb_array_elements(:'given'::jsonb) AS g
 WHERE e.id = (g ->> 'id')::bigint;
