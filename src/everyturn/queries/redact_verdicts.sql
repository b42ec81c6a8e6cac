-- Put masked words in place of those of verdicts. given: a JSON array of {id, rationale, payload}.
UPDATE agent_evals e
   SET rationale = g ->> 'rationale', payload = nullif(g -> 'payload', 'null')
  FROM jsonb_array_elements(:'given'::jsonb) AS g
 WHERE e.id = (g ->> 'id')::uuid;
