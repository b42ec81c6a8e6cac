-- Write the rows of agent_semantic that the log tells of and the table lacks.
-- See memory_rebuild_remove_semantic.sql.

WITH written AS (
    INSERT INTO agent_semantic
           (id, scope, agent, subjects, text, attributes, embedding, embedded_by, created_at,
            valid_from, valid_until, superseded_by, expires_at, source_turn)
    SELECT l.id, l.scope, l.agent, l.subjects, l.text, l.attributes, l.embedding, l.embedded_by,
           l.created_at, l.valid_from, l.valid_until, l.superseded_by, l.expires_at, l.source_turn
      FROM (
          SELECT sorted.*, row_number() OVER () AS place
            FROM (
                SELECT l.*
                  FROM everyturn_semantic_from_log() AS l
                 WHERE (:'scope'::text IS NULL OR l.scope = :'scope'::text)
                   AND (:'agent'::text IS NULL OR l.agent = :'agent'::text)
                   AND NOT EXISTS (SELECT FROM agent_semantic m WHERE m.id = l.id)
                 ORDER BY l.id
                OFFSET 0
            ) AS sorted
      ) AS l
     WHERE everyturn_rebuilding('semantic', l.place)
    RETURNING id
)
SELECT count(*) AS written FROM written;
