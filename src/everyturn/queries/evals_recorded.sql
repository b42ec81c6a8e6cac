-- Which verdicts were recorded, newest first?
SELECT e.id, e.turn_id, e.conversation, e.evaluator, e.verdict, e.rationale, e.payload, e.created_at
  FROM agent_evals e
 WHERE (:'turn_id'::uuid IS NULL OR e.turn_id = :'turn_id'::uuid)
   AND (:'conversation'::uuid IS NULL OR e.conversation = :'conversation'::uuid)
   AND (:'evaluator'::text IS NULL OR e.evaluator = :'evaluator'::text)
   AND (:'verdict'::text IS NULL OR e.verdict = :'verdict'::text)
 ORDER BY e.created_at DESC, e.id DESC
 LIMIT :'limit'::bigint;
