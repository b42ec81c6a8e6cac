-- How many cases passed how many of their trials?
-- The runs of a replay are read in the order of its key, which is by case, so that counting them takes no sorting.

SELECT counted.passed, counted.n, count(*) AS cases
  FROM (SELECT count(*) AS n, count(*) FILTER (WHERE r.outcome = 'pass') AS passed
          FROM eval_run r
         WHERE r.replay_id = :'replay'::uuid
         GROUP BY r.case_id
        UNION ALL
        SELECT count(*), count(*) FILTER (WHERE r.outcome = 'pass')
          FROM everyturn_runs_of(:'dataset_id'::uuid, :'model'::text, :'prompt_rev'::text, NULL) AS r
         WHERE :'replay'::uuid IS NULL
         GROUP BY r.case_id) AS counted
 GROUP BY counted.passed, counted.n;
