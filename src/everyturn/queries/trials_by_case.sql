-- How many cases passed how many of their trials?
SELECT counted.passed, counted.n, count(*) AS cases
  FROM (SELECT r.case_id, count(*) AS n, count(*) FILTER (WHERE r.outcome = 'pass') AS passed
          FROM everyturn_runs_of(:'dataset_id'::uuid, :'model'::text, :'prompt_rev'::text, :'replay'::uuid) AS r
         GROUP BY r.case_id) AS counted
 GROUP BY counted.passed, counted.n;
