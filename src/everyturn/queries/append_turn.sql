-- Append one turn.
INSERT INTO agent_turns (id, conversation, agent, kind, payload, embedding, embedded_by, created_at)
VALUES (:'id'::uuid, :'conversation'::uuid, :'agent', :'kind', :'payload'::jsonb, :'embedding'::vector,
        :'embedded_by', coalesce(:'created_at'::timestamptz, now()))
RETURNING seq, created_at;
