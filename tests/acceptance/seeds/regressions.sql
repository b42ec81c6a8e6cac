WITH old AS (
  SELECT case_id, pass FROM eval_run
  WHERE model = 'claude-opus-4-6' AND prompt_rev = 'a1b2c3'
), new AS (
  SELECT case_id, pass, output FROM eval_run
  WHERE model = 'claude-opus-4-7' AND prompt_rev = 'a1b2c3'
)
SELECT c.id, c.prompt, c.tags, new.output
FROM eval_case c
JOIN old ON old.case_id = c.id
JOIN new ON new.case_id = c.id
WHERE old.pass AND NOT new.pass
ORDER BY 'regression' = ANY(c.tags) DESC
