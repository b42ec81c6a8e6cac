-- Record a worker's verdict, unless it is there already: its id is made of the turn and the evaluator.
INSERT INTO agent_evals (id, turn_id, conversation, evaluator, verdict, rationale, payload)
VALUES (:'id'::uuid, :'turn_id'::uuid, :'conversation'::uuid, :'evaluator'::text, :'verdict'::text,
        :'rationale'::text, :'payload'::jsonb)
ON CONFLICT DO NOTHING
RETURNING id;
