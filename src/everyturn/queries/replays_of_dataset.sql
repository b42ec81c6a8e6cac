-- Which replays of a dataset were made, and how far did each get? The newest first.
SELECT p.id, p.model, p.prompt_rev, p.status, cardinality(p.case_ids) AS cases, p.trials, p.seed, p.scorers,
       p.started_at, p.ended_at, runs.done, runs.passed, runs.errors
  FROM eval_replay p
 CROSS JOIN LATERAL (
       SELECT count(*) AS done, count(*) FILTER (WHERE r.outcome = 'pass') AS passed,
              count(*) FILTER (WHERE r.outcome = 'error') AS errors
         FROM eval_run r
        WHERE r.replay_id = p.id) AS runs
 WHERE :'dataset_id'::uuid IS NULL OR p.dataset_id = :'dataset_id'::uuid
 ORDER BY p.started_at DESC, p.id DESC
 LIMIT :'limit'::bigint;
