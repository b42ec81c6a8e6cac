-- What share of the cases with each tag does each model pass under each prompt? The weakest tag of a model first.
-- Parameters as of pass_rate.

WITH dataset AS MATERIALIZED (
    SELECT d.id
      FROM eval_dataset d
     WHERE d.name = :'name'::text
       AND (:'version'::int IS NULL OR d.version = :'version'::int)
     ORDER BY d.version DESC
     LIMIT 1
), chosen AS MATERIALIZED (
    SELECT n.model, n.prompt_rev, n.replay
      FROM dataset d
     CROSS JOIN LATERAL everyturn_newest_replays(d.id) AS n
     WHERE :'replay'::uuid IS NULL
    UNION ALL
    SELECT p.model, p.prompt_rev, p.id
      FROM eval_replay p
      JOIN dataset d ON d.id = p.dataset_id
     WHERE p.id = :'replay'::uuid
)
SELECT c.model, c.prompt_rev, coalesce(t.tag, '(none)') AS tag, count(DISTINCT k.id) AS cases, count(*) AS n,
       count(*) FILTER (WHERE r.outcome = 'pass') AS passed,
       round(count(*) FILTER (WHERE r.outcome = 'pass') / count(*)::numeric, 4) AS pass_rate,
       count(*) FILTER (WHERE r.outcome = 'error') AS errors,
       count(*) FILTER (WHERE r.outcome = 'unjudged') AS unjudged, c.replay AS replay_id
  FROM chosen c
 CROSS JOIN dataset d
 CROSS JOIN LATERAL everyturn_runs_of(d.id, c.model, c.prompt_rev, c.replay) AS r
  JOIN eval_case k ON k.id = r.case_id
  LEFT JOIN LATERAL unnest(k.tags) AS t (tag) ON true
 WHERE (:'model'::text IS NULL OR c.model = :'model'::text)
   AND (:'prompt_rev'::text IS NULL OR starts_with(c.prompt_rev, :'prompt_rev'::text))
 GROUP BY c.model, c.prompt_rev, c.replay, coalesce(t.tag, '(none)')
 ORDER BY c.model, c.prompt_rev, pass_rate, tag;
