-- Put masked words in place of those of results. given: a JSON array of {id, output, error, judge_reason, scores, drift}.
UPDATE eval_run r
   SET output = g ->> 'output', error = g ->> 'error', judge_reason = g ->> 'judge_reason',
       scores = nullif(g -> 'scores', 'null'), drift = nullif(g -> 'drift', 'null')
  FROM jsonb_array_elements(:'given'::jsonb) AS g
 WHERE r.id = (g ->> 'id')::uuid;
