-- On which turns do two evaluators disagree, good against bad first, then the newest?
-- An evaluator's verdict on a turn is its latest. agent, since, until (of the turn) and limit may be NULL.

WITH latest AS (
    SELECT DISTINCT ON (e.turn_id, e.conversation, e.evaluator, coalesce(e.payload ->> 'target', 'turn')) e.*,
           coalesce(e.payload ->> 'target', 'turn') AS target
      FROM agent_evals e
     WHERE e.evaluator IN (:'evaluator'::text, :'against'::text)
     ORDER BY e.turn_id, e.conversation, e.evaluator, coalesce(e.payload ->> 'target', 'turn'),
              e.created_at DESC, e.id DESC
)
SELECT t.id AS turn_id, t.conversation, t.agent, a.target, a.verdict, a.rationale,
       b.verdict AS against_verdict, b.rationale AS against_rationale,
       left(coalesce(everyturn_turn_text(t.kind, t.payload), t.payload::text), 500) AS text
  FROM latest a
  JOIN latest b ON b.turn_id = a.turn_id AND b.conversation = a.conversation AND b.target = a.target
  JOIN agent_turns t ON t.id = a.turn_id AND t.conversation = a.conversation
 WHERE a.evaluator = :'evaluator'::text
   AND b.evaluator = :'against'::text
   AND a.verdict <> b.verdict
   AND (:'agent'::text IS NULL OR t.agent = :'agent'::text)
   AND (:'since'::timestamptz IS NULL OR t.created_at >= :'since'::timestamptz)
   AND (:'until'::timestamptz IS NULL OR t.created_at < :'until'::timestamptz)
 ORDER BY 'partial' IN (a.verdict, b.verdict), t.seq DESC
 LIMIT :'limit'::bigint;
