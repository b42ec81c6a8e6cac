-- Which real prompts is no case of a dataset near? Compares the vectors of user turns with those of the cases.
--
-- name, version   the dataset; without a version, its newest
-- since           turns from then on
-- agent           only of this agent; may be NULL
-- below           a prompt is covered when a case is at least this similar
-- limit           how many of the newest prompts are looked at

WITH dataset AS MATERIALIZED (
    SELECT d.case_ids
      FROM eval_dataset d
     WHERE d.name = :'name'::text
       AND (:'version'::int IS NULL OR d.version = :'version'::int)
     ORDER BY d.version DESC
     LIMIT 1
), newest AS MATERIALIZED (
    SELECT t.id, t.conversation, t.agent, t.payload ->> 'text' AS prompt, t.created_at, t.embedding, t.embedded_by
      FROM agent_turns t
     WHERE t.kind = 'user'
       AND t.embedding IS NOT NULL
       AND t.created_at >= :'since'::timestamptz
       AND t.payload #> '{attributes,replay}' IS NULL
       AND (:'agent'::text IS NULL OR t.agent = :'agent'::text)
     ORDER BY t.created_at DESC
     LIMIT :'limit'::int
), asked AS MATERIALIZED (
    SELECT DISTINCT ON (n.prompt) n.*, count(*) OVER (PARTITION BY n.prompt) AS times
      FROM newest n
     ORDER BY n.prompt, n.created_at DESC
), cases AS MATERIALIZED (
    SELECT c.id, c.embedding, c.embedded_by
      FROM dataset d
     CROSS JOIN LATERAL unnest(d.case_ids) AS m (id)
      JOIN eval_case c ON c.id = m.id
     WHERE cardinality(d.case_ids) <= 5000 AND c.embedding IS NOT NULL
), nearest AS (
    SELECT a.id, a.conversation, a.agent, a.prompt, a.created_at, a.times, near.case_id, near.similarity
      FROM asked a
      LEFT JOIN LATERAL (
           -- Few cases: all are compared. Many: the index finds the nearest.
           SELECT found.case_id, found.similarity
             FROM (SELECT few.id AS case_id, 1 - (few.embedding <=> a.embedding) AS similarity
                     FROM cases few
                    WHERE few.embedded_by IS NOT DISTINCT FROM a.embedded_by
                   UNION ALL
                   (SELECT c.id, 1 - (c.embedding <=> a.embedding)
                      FROM eval_case c
                     WHERE (SELECT cardinality(d.case_ids) FROM dataset d) > 5000
                       AND c.embedded_by IS NOT DISTINCT FROM a.embedded_by
                       AND c.id = ANY ((SELECT d.case_ids FROM dataset d)::uuid[])
                     ORDER BY c.embedding <=> a.embedding
                     LIMIT 1)) AS found
            ORDER BY found.similarity DESC
            LIMIT 1) AS near ON true
)
SELECT n.id AS turn_id, n.conversation, n.agent, n.prompt, n.times, n.created_at, n.case_id, n.similarity,
       (SELECT count(*) FROM nearest) AS prompts
  FROM nearest n
 WHERE n.similarity IS NULL OR n.similarity < :'below'::float8
 ORDER BY n.similarity NULLS FIRST, n.created_at DESC;
