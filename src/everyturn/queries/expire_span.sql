-- Between which ids lie the stream events from before this moment? Of one run, where it is named.
SELECT min(e.id) AS first_id, max(e.id) AS last_id
  FROM agent_events e
 WHERE e.created_at < :'before'::timestamptz
   AND (:'run_id'::text IS NULL OR e.run_id = :'run_id'::text);
