-- Freeze the cases that match as the next version of a dataset, unless a version holds exactly them already.
-- The caller holds the lock of the name, so that this statement sees every version published before.
--
-- among    uuid[]: only of these cases; NULL for any
-- vector   the nearest to it come before others where limit cuts; NULL: the newest do

WITH picked AS MATERIALIZED (
    SELECT c.id, c.captured_at
      FROM eval_case c
     WHERE (:'among'::uuid[] IS NULL OR c.id = ANY (:'among'::uuid[]))
       AND (:'tags'::text[] IS NULL OR c.tags @> :'tags'::text[])
       AND (:'any_tags'::text[] IS NULL OR c.tags && :'any_tags'::text[])
       AND (:'not_tags'::text[] IS NULL OR NOT c.tags && :'not_tags'::text[])
       AND (:'source'::text IS NULL OR c.source = :'source'::text)
       AND (:'since'::timestamptz IS NULL OR c.captured_at >= :'since'::timestamptz)
       AND (:'until'::timestamptz IS NULL OR c.captured_at < :'until'::timestamptz)
       AND (:'vector'::vector IS NULL OR c.embedded_by = :'embedded_by'::text)
     ORDER BY CASE WHEN :'vector'::vector IS NOT NULL THEN c.embedding <=> :'vector'::vector END,
              c.captured_at DESC, c.id DESC
     LIMIT :'limit'::bigint
), content AS MATERIALIZED (
    SELECT array_agg(p.id ORDER BY p.captured_at, p.id) AS case_ids
      FROM picked p
), same AS (
    SELECT d.id, d.name, d.version, d.case_ids, d.notes, d.published_at
      FROM eval_dataset d
      JOIN content ON d.case_ids = content.case_ids
     WHERE d.name = :'name'::text
     ORDER BY d.version DESC
     LIMIT 1
), made AS (
    INSERT INTO eval_dataset (id, name, version, case_ids, notes)
    SELECT :'id'::uuid, :'name'::text,
           coalesce((SELECT max(d.version) FROM eval_dataset d WHERE d.name = :'name'::text), 0) + 1,
           content.case_ids, :'notes'::text
      FROM content
     WHERE content.case_ids IS NOT NULL
       AND NOT EXISTS (SELECT FROM same)
    RETURNING id, name, version, case_ids, notes, published_at
)
SELECT m.*, true AS created FROM made m
UNION ALL
SELECT s.*, false FROM same s;
