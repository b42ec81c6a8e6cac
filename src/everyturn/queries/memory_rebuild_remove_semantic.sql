-- Make agent_semantic again from the log: rows that differ from it are removed, rows that are missing are written.
-- Set-based and without embedding; the caller holds the table against writers. Rows of other scopes and agents stay.
--
-- scope, agent   NULL is any

WITH told AS MATERIALIZED (
    SELECT *
      FROM everyturn_semantic_from_log() AS l
     WHERE (:'scope'::text IS NULL OR l.scope = :'scope'::text)
       AND (:'agent'::text IS NULL OR l.agent = :'agent'::text)
),
kept AS MATERIALIZED (
    SELECT m.id
      FROM agent_semantic m
      JOIN told l USING (id)
     WHERE (m.id, m.scope, m.agent, m.subjects, m.text, m.attributes, m.embedding, m.embedded_by,
            m.created_at, m.valid_from, m.valid_until, m.superseded_by, m.expires_at, m.source_turn)
           IS NOT DISTINCT FROM
           (l.id, l.scope, l.agent, l.subjects, l.text, l.attributes, l.embedding, l.embedded_by,
            l.created_at, l.valid_from, l.valid_until, l.superseded_by, l.expires_at, l.source_turn)
),
removed AS (
    DELETE FROM agent_semantic m
     WHERE (:'scope'::text IS NULL OR m.scope = :'scope'::text)
       AND (:'agent'::text IS NULL OR m.agent = :'agent'::text)
       AND NOT EXISTS (SELECT FROM kept k WHERE k.id = m.id)
    RETURNING m.id
)
SELECT (SELECT count(*) FROM removed) AS removed;
