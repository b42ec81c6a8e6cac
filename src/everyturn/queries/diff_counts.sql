-- How many cases fared how, under a baseline and a candidate? One row for each pair of results that occurs.
-- A side is a replay, or, where that is NULL, the runs written by hand for its model and prompt.

WITH runs AS (
    SELECT r.case_id, r.outcome, false AS is_new
      FROM everyturn_runs_of(:'dataset_id'::uuid, :'baseline'::text, :'baseline_rev'::text,
                             :'baseline_replay'::uuid) AS r
    UNION ALL
    SELECT r.case_id, r.outcome, true
      FROM everyturn_runs_of(:'dataset_id'::uuid, :'candidate'::text, :'candidate_rev'::text,
                             :'candidate_replay'::uuid) AS r
), by_case AS (
    SELECT r.case_id,
           count(*) FILTER (WHERE NOT r.is_new) AS old_n,
           count(*) FILTER (WHERE NOT r.is_new AND r.outcome = 'pass') AS old_passed,
           count(*) FILTER (WHERE r.is_new) AS new_n,
           count(*) FILTER (WHERE r.is_new AND r.outcome = 'pass') AS new_passed,
           bool_or(r.outcome = 'unjudged') AS unjudged
      FROM runs r
     GROUP BY r.case_id
)
SELECT nullif(b.old_n, 0) AS old_n, b.old_passed, nullif(b.new_n, 0) AS new_n, b.new_passed, b.unjudged,
       count(*) AS cases
  FROM by_case b
 GROUP BY 1, 2, 3, 4, 5;
