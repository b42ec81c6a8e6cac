-- Store values under their keys, replacing what was there: the rows, then the turns they can be made from again.
-- A row is locked before its turn gets its seq, so that two writers of one key leave both in the same order.
--
-- rows   a JSON array, one object a value, each key once; see memory_write.py

WITH given AS MATERIALIZED (
    SELECT g.*
      FROM jsonb_to_recordset(:'rows'::jsonb) AS g (
               id uuid, turn uuid, conversation uuid, writer text, run_id text, agent text, scope text,
               subjects text[], cache_key text, value jsonb, expires_at timestamptz)
),
stored AS (
    INSERT INTO agent_procedural AS p
           (id, scope, agent, cache_key, subjects, value, created_at, updated_at, expires_at, source_turn)
    SELECT g.id, g.scope, g.agent, g.cache_key, g.subjects, coalesce(g.value, 'null'), statement_timestamp(),
           statement_timestamp(), g.expires_at, g.turn
      FROM given g
     ORDER BY g.scope, g.agent, g.cache_key
    ON CONFLICT (scope, agent, cache_key) DO UPDATE
       SET subjects = excluded.subjects, value = excluded.value, updated_at = excluded.updated_at,
           expires_at = excluded.expires_at, source_turn = excluded.source_turn
    RETURNING id, scope, agent, cache_key, subjects, value, created_at, updated_at, expires_at, source_turn
),
logged AS (
    INSERT INTO agent_turns (id, conversation, agent, kind, payload, created_at)
    SELECT g.turn, g.conversation, g.writer, 'tool_result',
           jsonb_build_object(
               'toolName', 'memory.remember', 'kind', 'procedural', 'id', s.id, 'scope', s.scope, 'agent', s.agent,
               'cacheKey', s.cache_key, 'subjects', s.subjects, 'value', s.value, 'createdAt', s.created_at)
           || CASE WHEN s.expires_at IS NULL THEN '{}' ELSE jsonb_build_object('expiresAt', s.expires_at) END
           || CASE WHEN g.run_id IS NULL THEN '{}' ELSE jsonb_build_object('runId', g.run_id) END,
           s.updated_at
      FROM stored s
      JOIN given g ON g.turn = s.source_turn
     ORDER BY s.scope, s.agent, s.cache_key
    RETURNING id
)
SELECT s.source_turn AS turn, s.id, (SELECT count(*) FROM logged) AS logged
  FROM stored s;
