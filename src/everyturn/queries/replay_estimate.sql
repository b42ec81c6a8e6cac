-- What did the cases of a replay take before, and how long are their prompts? For an estimate of what it will cost.
--
-- case_ids      uuid[]: the cases
-- model         the model; what other models took of the same cases is used where it never ran

WITH cases AS (
    SELECT c.id, length(c.prompt) + coalesce(length((c.context -> 'history')::text), 0) AS characters
      FROM eval_case c
     WHERE c.id = ANY (:'case_ids'::uuid[])
), before AS (
    SELECT r.model = :'model'::text AS same_model, avg(r.input_tokens) AS input_tokens,
           avg(r.output_tokens) AS output_tokens, avg(r.cost_usd) AS cost_usd, count(*) AS runs
      FROM eval_run r
     WHERE r.case_id = ANY (:'case_ids'::uuid[]) AND r.outcome <> 'error' AND r.output_tokens > 0
     GROUP BY 1
)
SELECT sizes.cases, sizes.characters, b.input_tokens, b.output_tokens, b.cost_usd, b.same_model, b.runs
  FROM (SELECT count(*) AS cases, avg(characters) AS characters FROM cases) AS sizes
  LEFT JOIN (SELECT * FROM before ORDER BY same_model DESC LIMIT 1) AS b ON true;
