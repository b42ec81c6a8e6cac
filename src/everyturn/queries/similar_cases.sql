-- Which cases are like the one that just broke production: like a case, or like a text's vector?
--
-- id                    the case to compare with; it is not among the rows
-- vector, embedded_by   or a vector, and the name of the embedder that made it
-- tags, not_tags        text[]: only cases that have all of the first, and none of the second; may be NULL
-- dataset_id            only cases of this dataset; may be NULL
-- limit                 how many; NULL for 10

WITH asked AS MATERIALIZED (
    SELECT coalesce(:'vector'::vector, (SELECT c.embedding FROM eval_case c WHERE c.id = :'id'::uuid)) AS embedding,
           CASE WHEN :'vector'::vector IS NOT NULL THEN :'embedded_by'::text
                ELSE (SELECT c.embedded_by FROM eval_case c WHERE c.id = :'id'::uuid) END AS embedded_by
)
SELECT c.id, c.source, c.prompt, c.context, c.reference, c.tags, c.captured_at, c.captured_by, c.turn_id,
       c.content_hash, 1 - (c.embedding <=> (SELECT a.embedding FROM asked a)) AS similarity
  FROM eval_case c
 WHERE (:'id'::uuid IS NULL OR c.id <> :'id'::uuid)
   AND (SELECT a.embedding FROM asked a) IS NOT NULL
   AND c.embedded_by IS NOT DISTINCT FROM (SELECT a.embedded_by FROM asked a)
   AND (:'tags'::text[] IS NULL OR c.tags @> :'tags'::text[])
   AND (:'not_tags'::text[] IS NULL OR NOT c.tags && :'not_tags'::text[])
   AND (:'dataset_id'::uuid IS NULL
        OR c.id = ANY ((SELECT d.case_ids FROM eval_dataset d WHERE d.id = :'dataset_id'::uuid)::uuid[]))
 ORDER BY c.embedding <=> (SELECT a.embedding FROM asked a)
 LIMIT coalesce(:'limit'::int, 10);
