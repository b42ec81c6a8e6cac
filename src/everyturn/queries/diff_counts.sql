-- How many cases fared how, under a baseline and a candidate? One row for each pair of results that occurs.
-- A side is a replay, or, where that is NULL, the runs written by hand for its model and prompt.

WITH old AS (
    SELECT r.case_id, count(*) AS n, count(*) FILTER (WHERE r.outcome = 'pass') AS passed,
           count(*) FILTER (WHERE r.outcome = 'unjudged') AS unjudged
      FROM everyturn_runs_of(:'dataset_id'::uuid, :'baseline'::text, :'baseline_rev'::text,
                             :'baseline_replay'::uuid) AS r
     GROUP BY r.case_id
), new AS (
    SELECT r.case_id, count(*) AS n, count(*) FILTER (WHERE r.outcome = 'pass') AS passed,
           count(*) FILTER (WHERE r.outcome = 'unjudged') AS unjudged
      FROM everyturn_runs_of(:'dataset_id'::uuid, :'candidate'::text, :'candidate_rev'::text,
                             :'candidate_replay'::uuid) AS r
     GROUP BY r.case_id
)
SELECT old.n AS old_n, old.passed AS old_passed, new.n AS new_n, new.passed AS new_passed,
       coalesce(old.unjudged, 0) + coalesce(new.unjudged, 0) > 0 AS unjudged, count(*) AS cases
  FROM old
  FULL JOIN new ON new.case_id = old.case_id
 GROUP BY 1, 2, 3, 4, 5;
