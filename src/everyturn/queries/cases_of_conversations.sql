-- Which cases were captured from turns of these conversations?
SELECT c.id, c.prompt, c.context::text, c.reference
  FROM eval_case c
  JOIN agent_turns t ON t.id = c.turn_id
 WHERE t.conversation = ANY (:'conversations'::uuid[]);
