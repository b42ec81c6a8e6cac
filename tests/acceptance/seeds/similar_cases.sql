SELECT id, prompt, tags
FROM eval_case
ORDER BY embedding <=> (SELECT embedding FROM eval_case WHERE id = $1)
LIMIT 10
