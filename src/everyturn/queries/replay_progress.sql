-- How far is this replay, and what has it cost?
SELECT cardinality(p.case_ids) * p.trials::bigint AS total, runs.*
  FROM eval_replay p
 CROSS JOIN LATERAL (
       SELECT count(*) AS done,
              count(*) FILTER (WHERE r.outcome = 'pass') AS passed,
              count(*) FILTER (WHERE r.outcome = 'fail') AS failed,
              count(*) FILTER (WHERE r.outcome = 'error') AS errors,
              count(*) FILTER (WHERE r.outcome = 'unjudged') AS unjudged,
              count(*) FILTER (WHERE r.cost_usd IS NULL) AS unpriced,
              coalesce(sum(r.cost_usd), 0) AS cost_usd,
              coalesce(sum(r.judge_cost_usd), 0) AS judge_cost_usd
         FROM eval_run r
        WHERE r.replay_id = p.id) AS runs
 WHERE p.id = :'id'::uuid;
