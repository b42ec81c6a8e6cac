-- Remember facts: the rows, then the turns they can be made from again, in one statement.
--
-- rows         a JSON array, one object a fact; see memory_write.py
-- vectors      their vectors in the same order, joined by U+001F; U+001E alone is NULL
-- embedded_by  the embedder that made the vectors

WITH given AS MATERIALIZED (
    SELECT g.*, CASE WHEN g.vector IS NOT NULL THEN :'embedded_by'::text END AS embedded_by
      FROM ROWS FROM (
               jsonb_to_recordset(:'rows'::jsonb) AS (
                   id uuid, turn uuid, conversation uuid, writer text, run_id text, agent text, scope text,
                   subjects text[], text text, attributes jsonb, occurred_at timestamptz, expires_at timestamptz),
               unnest(string_to_array(:'vectors'::text, E'\x1f', E'\x1e')::vector[])
           ) WITH ORDINALITY AS g (
               id, turn, conversation, writer, run_id, agent, scope, subjects, text, attributes, valid_from,
               expires_at, vector, place)
),
stored AS (
    INSERT INTO agent_semantic
           (id, scope, agent, subjects, text, attributes, embedding, embedded_by, created_at, valid_from,
            expires_at, source_turn)
    SELECT g.id, g.scope, g.agent, g.subjects, g.text, g.attributes, g.vector, g.embedded_by,
           statement_timestamp(), coalesce(g.valid_from, statement_timestamp()), g.expires_at, g.turn
      FROM given g
     ORDER BY g.place
    RETURNING id, scope, agent, subjects, text, attributes, created_at, valid_from, expires_at
),
logged AS (
    INSERT INTO agent_turns (id, conversation, agent, kind, payload, embedding, embedded_by, created_at)
    SELECT g.turn, g.conversation, g.writer, 'tool_result',
           jsonb_build_object(
               'toolName', 'memory.remember', 'kind', 'semantic', 'id', s.id, 'scope', s.scope, 'agent', s.agent,
               'subjects', s.subjects, 'text', s.text, 'attributes', s.attributes, 'validFrom', s.valid_from)
           || CASE WHEN s.expires_at IS NULL THEN '{}' ELSE jsonb_build_object('expiresAt', s.expires_at) END
           || CASE WHEN g.run_id IS NULL THEN '{}' ELSE jsonb_build_object('runId', g.run_id) END,
           g.vector, g.embedded_by, s.created_at
      FROM stored s
      JOIN given g USING (id)
     ORDER BY g.place
    RETURNING id
)
SELECT count(*) AS logged FROM logged;
