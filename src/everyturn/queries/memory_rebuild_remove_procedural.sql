-- Make agent_procedural again from the log: rows that differ from it are removed, rows that are missing are written.
-- Set-based and without embedding; the caller holds the table against writers. Rows of other scopes and agents stay.
--
-- scope, agent   NULL is any

WITH told AS MATERIALIZED (
    SELECT *
      FROM everyturn_procedural_from_log() AS l
     WHERE (:'scope'::text IS NULL OR l.scope = :'scope'::text)
       AND (:'agent'::text IS NULL OR l.agent = :'agent'::text)
),
kept AS MATERIALIZED (
    SELECT m.id
      FROM agent_procedural m
      JOIN told l USING (id)
     WHERE (m.id, m.scope, m.agent, m.cache_key, m.subjects, m.value, m.created_at, m.updated_at,
            m.expires_at, m.source_turn)
           IS NOT DISTINCT FROM
           (l.id, l.scope, l.agent, l.cache_key, l.subjects, l.value, l.created_at, l.updated_at,
            l.expires_at, l.source_turn)
),
removed AS (
    DELETE FROM agent_procedural m
     WHERE (:'scope'::text IS NULL OR m.scope = :'scope'::text)
       AND (:'agent'::text IS NULL OR m.agent = :'agent'::text)
       AND NOT EXISTS (SELECT FROM kept k WHERE k.id = m.id)
    RETURNING m.id
)
SELECT (SELECT count(*) FROM removed) AS removed;
