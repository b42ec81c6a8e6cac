-- How often do two evaluators say the same of the turns that both judged? One row per pair of verdicts.
-- An evaluator's verdict on a turn is its latest. agent, since, until (of the turn) may be NULL.

WITH latest AS (
    SELECT DISTINCT ON (e.turn_id, e.conversation, e.evaluator, coalesce(e.payload ->> 'target', 'turn'))
           e.turn_id, e.conversation, e.evaluator, e.verdict, coalesce(e.payload ->> 'target', 'turn') AS target
      FROM agent_evals e
     WHERE e.evaluator IN (:'evaluator'::text, :'against'::text)
     ORDER BY e.turn_id, e.conversation, e.evaluator, coalesce(e.payload ->> 'target', 'turn'),
              e.created_at DESC, e.id DESC
)
SELECT a.verdict, b.verdict AS against_verdict, count(*) AS turns
  FROM latest a
  JOIN latest b ON b.turn_id = a.turn_id AND b.conversation = a.conversation AND b.target = a.target
  JOIN agent_turns t ON t.id = a.turn_id AND t.conversation = a.conversation
 WHERE a.evaluator = :'evaluator'::text
   AND b.evaluator = :'against'::text
   AND (:'agent'::text IS NULL OR t.agent = :'agent'::text)
   AND (:'since'::timestamptz IS NULL OR t.created_at >= :'since'::timestamptz)
   AND (:'until'::timestamptz IS NULL OR t.created_at < :'until'::timestamptz)
 GROUP BY 1, 2
 ORDER BY 1, 2;
