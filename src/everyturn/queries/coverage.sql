-- Which areas of a dataset are thin? How many of its cases have each tag; cases without any are `(none)`.
-- name, version   the dataset; without a version, its newest

WITH dataset AS (
    SELECT d.case_ids
      FROM eval_dataset d
     WHERE d.name = :'name'::text
       AND (:'version'::int IS NULL OR d.version = :'version'::int)
     ORDER BY d.version DESC
     LIMIT 1
), tagged AS (
    SELECT c.id, coalesce(t.tag, '(none)') AS tag
      FROM dataset d
     CROSS JOIN LATERAL unnest(d.case_ids) AS m (id)
      JOIN eval_case c ON c.id = m.id
      LEFT JOIN LATERAL unnest(c.tags) AS t (tag) ON true
)
SELECT t.tag, count(DISTINCT t.id) AS cases,
       round(count(DISTINCT t.id) / (SELECT cardinality(d.case_ids) FROM dataset d)::numeric, 4) AS share
  FROM tagged t
 GROUP BY t.tag
 ORDER BY cases DESC, t.tag;
