-- Which cases hold most of these words? What similarity falls back to where there are no vectors.
-- words   text[], in lower case

SELECT c.id, c.source, c.prompt, c.context, c.reference, c.tags, c.captured_at, c.captured_by, c.turn_id,
       c.content_hash, found.words / cardinality(:'words'::text[])::float8 AS score
  FROM eval_case c
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE strpos(lower(c.prompt), w.word) > 0)::float8 AS words
         FROM unnest(:'words'::text[]) AS w (word)) AS found
 WHERE found.words > 0
   AND (:'id'::uuid IS NULL OR c.id <> :'id'::uuid)
   AND (:'tags'::text[] IS NULL OR c.tags @> :'tags'::text[])
   AND (:'not_tags'::text[] IS NULL OR NOT c.tags && :'not_tags'::text[])
   AND (:'dataset_id'::uuid IS NULL
        OR c.id = ANY ((SELECT d.case_ids FROM eval_dataset d WHERE d.id = :'dataset_id'::uuid)::uuid[]))
 ORDER BY score DESC, c.captured_at DESC, c.id DESC
 LIMIT :'limit'::int;
