-- Record a verdict on a turn; its conversation is the turn's.
INSERT INTO agent_evals (id, turn_id, evaluator, verdict, rationale, payload, conversation)
SELECT :'id'::uuid, :'turn_id'::uuid, :'evaluator'::text, :'verdict'::text, :'rationale'::text, :'payload'::jsonb,
       (SELECT t.conversation FROM agent_turns t WHERE t.id = :'turn_id'::uuid)
RETURNING id, turn_id, conversation, evaluator, verdict, rationale, payload, created_at;
