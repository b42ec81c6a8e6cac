-- Note how a replay stands; what it was asked to do never changes, but a judge may be added to one that had no scorers.
UPDATE eval_replay p
   SET status = :'status'::text,
       ended_at = CASE WHEN :'status'::text = 'running' THEN NULL ELSE clock_timestamp() END,
       scorers = coalesce(:'scorers'::text[], p.scorers)
 WHERE p.id = :'id'::uuid;
