-- The stream events with these ids, in order.
SELECT e.id, e.run_id, e.agent_id, e.agent_name, e.turn, e.tool_name, e.tool_call_id, e.internal_call_id, e.event,
       e.created_at
  FROM agent_events e
 WHERE e.id = ANY (:'ids'::bigint[])
 ORDER BY e.id;
