-- Forget events: delete up to `batch` of them, with their vectors, and log which.
--
-- ids, scope, agent, subjects, has, path, exactly, present, absent, since, until   may be NULL, as in
--   recall_episodic.sql
-- expired true: only what has expired
-- after   the greatest id of the batch before; NULL for the first
-- turn, conversation, writer, run_id   of the turn that is logged

WITH chosen AS MATERIALIZED (
    SELECT m.id
      FROM agent_episodic m
     WHERE (:'ids'::uuid[] IS NULL OR m.id = ANY (:'ids'::uuid[]))
       AND (:'scope'::text IS NULL OR m.scope = :'scope'::text)
       AND (:'agent'::text IS NULL OR m.agent = :'agent'::text)
       AND (:'subjects'::text[] IS NULL OR m.subjects @> :'subjects'::text[])
       AND (:'has'::jsonb IS NULL OR m.attributes @> :'has'::jsonb)
       AND (:'path'::jsonpath IS NULL OR m.attributes @@ :'path'::jsonpath)
       AND (:'present'::text[] IS NULL OR m.attributes ?& :'present'::text[])
       AND (:'absent'::text[] IS NULL OR NOT m.attributes ?| :'absent'::text[])
       AND (:'exactly'::jsonb IS NULL OR NOT EXISTS (
               SELECT FROM jsonb_each(:'exactly'::jsonb) AS wanted (key, value)
                WHERE m.attributes -> wanted.key IS DISTINCT FROM wanted.value))
       AND (:'since'::timestamptz IS NULL OR m.occurred_at >= :'since'::timestamptz)
       AND (:'until'::timestamptz IS NULL OR m.occurred_at < :'until'::timestamptz)
       AND (NOT :'expired'::boolean OR m.expires_at <= now())
       AND (:'after'::uuid IS NULL OR m.id > :'after'::uuid)
     ORDER BY m.id
     LIMIT :'batch'::bigint
),
gone AS (
    DELETE FROM agent_episodic m
     USING chosen c
     WHERE m.id = c.id
    RETURNING m.id, m.text AS content
),
logged AS (
    INSERT INTO agent_turns (id, conversation, agent, kind, payload, created_at)
    SELECT :'turn'::uuid, :'conversation'::uuid, :'writer'::text, 'tool_result',
           jsonb_build_object(
               'toolName', 'memory.forget', 'kind', 'episodic', 'count', count(*), 'ids', jsonb_agg(g.id))
           || CASE WHEN :'run_id'::text IS NULL THEN '{}' ELSE jsonb_build_object('runId', :'run_id'::text) END,
           statement_timestamp()
      FROM gone g
    HAVING count(*) > 0
    RETURNING id
)
SELECT g.id, g.content, (SELECT count(*) FROM logged) AS logged
  FROM gone g
 ORDER BY g.id;
