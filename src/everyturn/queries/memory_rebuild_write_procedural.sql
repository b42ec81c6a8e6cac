-- Write the rows of agent_procedural that the log tells of and the table lacks.
-- See memory_rebuild_remove_procedural.sql.

WITH written AS (
    INSERT INTO agent_procedural
           (id, scope, agent, cache_key, subjects, value, created_at, updated_at, expires_at,
            source_turn)
    SELECT l.id, l.scope, l.agent, l.cache_key, l.subjects, l.value, l.created_at, l.updated_at,
           l.expires_at, l.source_turn
      FROM (
          SELECT sorted.*, row_number() OVER () AS place
            FROM (
                SELECT l.*
                  FROM everyturn_procedural_from_log() AS l
                 WHERE (:'scope'::text IS NULL OR l.scope = :'scope'::text)
                   AND (:'agent'::text IS NULL OR l.agent = :'agent'::text)
                   AND NOT EXISTS (SELECT FROM agent_procedural m WHERE m.id = l.id)
                 ORDER BY l.id
                OFFSET 0
            ) AS sorted
      ) AS l
     WHERE everyturn_rebuilding('procedural', l.place)
    RETURNING id
)
SELECT count(*) AS written FROM written;
