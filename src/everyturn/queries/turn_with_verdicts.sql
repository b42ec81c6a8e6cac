-- What is this turn, and how was it judged? One row; `verdicts` is a JSON array, oldest first, empty when there are none.
--
-- id   the turn

SELECT t.id, t.seq, t.conversation, t.agent, t.kind, t.payload, t.created_at, t.embedded_by,
       coalesce((
           SELECT jsonb_agg(jsonb_build_object(
                      'id', e.id, 'evaluator', e.evaluator, 'verdict', e.verdict, 'rationale', e.rationale,
                      'payload', e.payload, 'created_at', e.created_at) ORDER BY e.created_at, e.id)
             FROM agent_evals e
            WHERE e.turn_id = t.id
              AND e.conversation = t.conversation), '[]') AS verdicts
  FROM agent_turns t
 WHERE t.id = :'id'::uuid;
