-- How many turns of each kind are in the log, over how many conversations, and when was the last?
--
-- agent   may be left empty
-- since   created_at from then on; may be left empty

SELECT t.kind, count(*) AS turns, count(DISTINCT t.conversation) AS conversations, max(t.created_at) AS last_at
  FROM agent_turns t
 WHERE (nullif(:'agent'::text, '') IS NULL OR t.agent = :'agent'::text)
   AND (nullif(:'since'::text, '') IS NULL OR t.created_at >= nullif(:'since'::text, '')::timestamptz)
 GROUP BY t.kind
 ORDER BY array_position(ARRAY['user', 'model', 'tool_call', 'tool_result', 'error'], t.kind);
