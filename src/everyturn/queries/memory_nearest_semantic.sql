-- The current fact of the same scope, agent and subjects that is nearest to a new one, if it is near enough.
-- The same text is nearest, with or without vectors.

WITH live AS NOT MATERIALIZED (
    SELECT m.id, m.text, m.embedding, m.embedded_by
      FROM agent_semantic m
     WHERE m.id <> :'id'::uuid
       AND m.scope = :'scope'::text
       AND m.agent = :'agent'::text
       AND m.subjects @> :'subjects'::text[]
       AND m.subjects <@ :'subjects'::text[]
       AND m.superseded_by IS NULL
       AND (m.expires_at IS NULL OR m.expires_at > now())
),
same AS MATERIALIZED (
    SELECT l.id, 1::float8 AS similarity
      FROM live l
     WHERE l.text = :'text'::text
     LIMIT 1
),
near AS MATERIALIZED (
    SELECT l.id, 1 - (l.embedding <=> :'vector'::vector) AS similarity
      FROM live l
     WHERE l.embedded_by = :'embedded_by'::text
       AND :'vector'::vector IS NOT NULL
       AND NOT EXISTS (SELECT FROM same)
     ORDER BY l.embedding <=> :'vector'::vector
     LIMIT 1
)
SELECT n.id, n.similarity
  FROM (SELECT * FROM same UNION ALL SELECT * FROM near) AS n
 WHERE n.similarity >= :'threshold'::float8 AND n.similarity <> 'NaN';
