-- What was said about these turns?
SELECT e.id, e.rationale, e.payload::text
  FROM agent_evals e
 WHERE e.turn_id = ANY (:'turns'::uuid[]);
