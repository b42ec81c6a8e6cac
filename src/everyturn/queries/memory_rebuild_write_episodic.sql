-- Write the rows of agent_episodic that the log tells of and the table lacks.
-- See memory_rebuild_remove_episodic.sql.

WITH written AS (
    INSERT INTO agent_episodic
           (id, scope, agent, conversation, subjects, text, attributes, embedding, embedded_by,
            occurred_at, created_at, expires_at, source_turn)
    SELECT l.id, l.scope, l.agent, l.conversation, l.subjects, l.text, l.attributes, l.embedding,
           l.embedded_by, l.occurred_at, l.created_at, l.expires_at, l.source_turn
      FROM (
          SELECT sorted.*, row_number() OVER () AS place
            FROM (
                SELECT l.*
                  FROM everyturn_episodic_from_log() AS l
                 WHERE (:'scope'::text IS NULL OR l.scope = :'scope'::text)
                   AND (:'agent'::text IS NULL OR l.agent = :'agent'::text)
                   AND NOT EXISTS (SELECT FROM agent_episodic m WHERE m.id = l.id)
                 ORDER BY l.id
                OFFSET 0
            ) AS sorted
      ) AS l
     WHERE everyturn_rebuilding('episodic', l.place)
    RETURNING id
)
SELECT count(*) AS written FROM written;
