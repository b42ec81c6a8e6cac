-- Replace a current fact: the old row is closed, the new row written, and the turn that both can be made from again.
-- What is NULL is taken over from the old fact. No row is returned when the fact is not there or not current.

WITH closed AS (
    UPDATE agent_semantic m
       SET superseded_by = :'id'::uuid,
           valid_until = coalesce(:'occurred_at'::timestamptz, statement_timestamp())
     WHERE m.id = :'old'::uuid
       AND m.superseded_by IS NULL
       AND (:'scope'::text IS NULL OR m.scope = :'scope'::text)
    RETURNING m.*
),
stored AS (
    INSERT INTO agent_semantic
           (id, scope, agent, subjects, text, attributes, embedding, embedded_by, created_at, valid_from,
            expires_at, source_turn)
    SELECT :'id'::uuid, c.scope, c.agent, coalesce(:'subjects'::text[], c.subjects), coalesce(:'text'::text, c.text),
           coalesce(:'attributes'::jsonb, c.attributes),
           CASE WHEN :'text'::text IS NULL THEN c.embedding ELSE :'vector'::vector END,
           CASE WHEN :'text'::text IS NULL THEN c.embedded_by
                WHEN :'vector'::vector IS NOT NULL THEN :'embedded_by'::text END,
           statement_timestamp(), c.valid_until, coalesce(:'expires_at'::timestamptz, c.expires_at), :'turn'::uuid
      FROM closed c
    RETURNING *
),
logged AS (
    INSERT INTO agent_turns (id, conversation, agent, kind, payload, embedding, embedded_by, created_at)
    SELECT :'turn'::uuid, :'conversation'::uuid, :'writer'::text,
           'tool_result',
           jsonb_build_object(
               'toolName', 'memory.supersede', 'kind', 'semantic', 'id', s.id, 'supersedes', :'old'::uuid,
               'scope', s.scope, 'agent', s.agent, 'subjects', s.subjects, 'text', s.text,
               'attributes', s.attributes, 'validFrom', s.valid_from)
           || CASE WHEN s.expires_at IS NULL THEN '{}' ELSE jsonb_build_object('expiresAt', s.expires_at) END
           || CASE WHEN :'run_id'::text IS NULL THEN '{}' ELSE jsonb_build_object('runId', :'run_id'::text) END,
           s.embedding, s.embedded_by, s.created_at
      FROM stored s
    RETURNING id
)
SELECT s.id, (SELECT count(*) FROM logged) AS logged
  FROM stored s;
