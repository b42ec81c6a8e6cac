-- Give memories the vector of the turn that holds the same text: one page, by id. What is not copied is embedded.
--
-- embedder   the embedder's name
-- page       the number of rows

WITH events AS (
    UPDATE agent_episodic e
       SET embedding = p.embedding, embedded_by = p.embedded_by
      FROM (
          SELECT o.id, t.embedding, t.embedded_by
            FROM agent_episodic o
            JOIN agent_turns t ON t.id = o.source_turn AND t.payload ->> 'text' = o.text
           WHERE o.embedded_by IS DISTINCT FROM :'embedder'::text AND t.embedded_by = :'embedder'::text
           LIMIT :'page'::bigint
      ) AS p
     WHERE e.id = p.id
    RETURNING e.id
),
facts AS (
    UPDATE agent_semantic s
       SET embedding = p.embedding, embedded_by = p.embedded_by
      FROM (
          SELECT o.id, t.embedding, t.embedded_by
            FROM agent_semantic o
            JOIN agent_turns t ON t.id = o.source_turn AND t.payload ->> 'text' = o.text
           WHERE o.embedded_by IS DISTINCT FROM :'embedder'::text AND t.embedded_by = :'embedder'::text
           LIMIT :'page'::bigint
      ) AS p
     WHERE s.id = p.id
    RETURNING s.id
)
SELECT (SELECT count(*) FROM events) AS agent_episodic, (SELECT count(*) FROM facts) AS agent_semantic;
