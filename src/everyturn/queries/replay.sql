-- What was this replay asked to do?
SELECT p.id, p.dataset_id, d.name, d.version, p.model, p.prompt_rev, p.prompt, p.settings, p.scorers,
       cardinality(p.case_ids) AS cases, p.trials, p.seed, p.status, p.started_at, p.ended_at
  FROM eval_replay p
  JOIN eval_dataset d ON d.id = p.dataset_id
 WHERE p.id = :'id'::uuid;
