-- Which results of replays came from this run, or from these cases?
SELECT r.id, r.output, r.error, r.judge_reason, r.scores::text, r.drift::text
  FROM eval_run r
 WHERE r.run_id = :'run_id'::text
    OR r.case_id = ANY (:'cases'::uuid[]);
