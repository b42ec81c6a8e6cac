-- Which turns got this verdict and are not cases yet, the first judged first? Their verdicts come with them.
-- verdict, evaluator, agent, since, until   may be NULL, but for the verdict
-- again                                     also turns that are cases already

SELECT t.id AS turn_id, t.conversation, t.agent, min(e.created_at) AS judged_at,
       jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
           'evaluator', e.evaluator, 'verdict', e.verdict, 'rationale', e.rationale)) ORDER BY e.created_at, e.id)
           AS verdicts
  FROM agent_evals e
  JOIN agent_turns t ON t.id = e.turn_id AND t.conversation = e.conversation
 WHERE e.verdict = :'verdict'::text
   AND (:'evaluator'::text IS NULL OR e.evaluator = :'evaluator'::text)
   AND (:'agent'::text IS NULL OR t.agent = :'agent'::text)
   AND (:'since'::timestamptz IS NULL OR e.created_at >= :'since'::timestamptz)
   AND (:'until'::timestamptz IS NULL OR e.created_at < :'until'::timestamptz)
   AND (:'again'::boolean OR NOT EXISTS (SELECT FROM eval_case c WHERE c.turn_id = t.id))
 GROUP BY t.id, t.conversation, t.agent
 ORDER BY judged_at, t.id
 LIMIT :'limit'::bigint;
