-- Forget values: delete up to `batch` of them, and log which.
--
-- ids, scope, agent, subjects, since, until   as in recall_procedural.sql
-- expired true: only what has expired
-- after   the greatest id of the batch before; NULL for the first
-- turn, conversation, writer, run_id   of the turn that is logged

WITH chosen AS MATERIALIZED (
    SELECT m.id
      FROM agent_procedural m
     WHERE (:'ids'::uuid[] IS NULL OR m.id = ANY (:'ids'::uuid[]))
       AND (:'scope'::text IS NULL OR m.scope = :'scope'::text)
       AND (:'agent'::text IS NULL OR m.agent = :'agent'::text)
       AND (:'subjects'::text[] IS NULL OR array_append(m.subjects, m.cache_key) @> :'subjects'::text[])
       AND (:'since'::timestamptz IS NULL OR m.updated_at >= :'since'::timestamptz)
       AND (:'until'::timestamptz IS NULL OR m.updated_at < :'until'::timestamptz)
       AND (NOT :'expired'::boolean OR m.expires_at <= now())
       AND (:'after'::uuid IS NULL OR m.id > :'after'::uuid)
     ORDER BY m.id
     LIMIT :'batch'::bigint
),
gone AS (
    DELETE FROM agent_procedural m
     USING chosen c
     WHERE m.id = c.id
    RETURNING m.id, m.value #>> '{}' AS content
),
logged AS (
    INSERT INTO agent_turns (id, conversation, agent, kind, payload, created_at)
    SELECT :'turn'::uuid, :'conversation'::uuid, :'writer'::text, 'tool_result',
           jsonb_build_object(
               'toolName', 'memory.forget', 'kind', 'procedural', 'count', count(*), 'ids', jsonb_agg(g.id))
           || CASE WHEN :'run_id'::text IS NULL THEN '{}' ELSE jsonb_build_object('runId', :'run_id'::text) END,
           statement_timestamp()
      FROM gone g
    HAVING count(*) > 0
    RETURNING id
)
SELECT g.id, g.content, (SELECT count(*) FROM logged) AS logged
  FROM gone g
 ORDER BY g.id;
