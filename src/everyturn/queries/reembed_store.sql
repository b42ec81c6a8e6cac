-- Give rows of a table their vectors.
--
-- relation   agent_turns, agent_episodic, agent_semantic or eval_case
-- embedder   the embedder that made the vectors
-- ids        the rows
-- vectors    their vectors, in the same order

WITH made AS MATERIALIZED (
    SELECT u.id, u.vector::vector AS embedding
      FROM unnest(:'ids'::uuid[], :'vectors'::text[]) AS u (id, vector)
),
turns AS (
    UPDATE agent_turns t
       SET embedding = m.embedding, embedded_by = :'embedder'::text
      FROM made m
     WHERE t.id = m.id AND :'relation'::text = 'agent_turns'
),
events AS (
    UPDATE agent_episodic e
       SET embedding = m.embedding, embedded_by = :'embedder'::text
      FROM made m
     WHERE e.id = m.id AND :'relation'::text = 'agent_episodic'
),
facts AS (
    UPDATE agent_semantic s
       SET embedding = m.embedding, embedded_by = :'embedder'::text
      FROM made m
     WHERE s.id = m.id AND :'relation'::text = 'agent_semantic'
)
UPDATE eval_case c
   SET embedding = m.embedding, embedded_by = :'embedder'::text
  FROM made m
 WHERE c.id = m.id AND :'relation'::text = 'eval_case';
