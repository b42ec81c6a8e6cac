-- What happened lately, in these runs or (runs NULL) in all, in the order of id?
SELECT e.id, e.run_id, e.agent_id, e.agent_name, e.turn, e.tool_name, e.tool_call_id, e.internal_call_id, e.event,
       e.created_at
  FROM agent_events e
 WHERE e.id > :'after'::bigint
   AND e.id <= :'until'::bigint
   AND (:'runs'::text[] IS NULL OR e.run_id = ANY (:'runs'::text[]))
 ORDER BY e.id
 LIMIT :'limit'::bigint;
