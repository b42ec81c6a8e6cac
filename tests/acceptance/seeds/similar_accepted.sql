SELECT t.payload, 1 - (t.embedding <=> $1) AS sim
FROM agent_turns t
LEFT JOIN agent_evals e ON e.turn_id = t.id
WHERE t.agent = 'code-reviewer'
  AND t.payload ->> 'repo' = $2
  AND (e.verdict IS NULL OR e.verdict <> 'bad')
ORDER BY t.embedding <=> $1
LIMIT 10
