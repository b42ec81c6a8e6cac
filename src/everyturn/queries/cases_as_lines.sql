-- The cases to export, each as one JSON line: of a dataset in its order, or those that match, the oldest first.
SELECT jsonb_build_object(
           'id', c.id, 'source', c.source, 'prompt', c.prompt, 'context', c.context, 'reference', c.reference,
           'tags', c.tags, 'captured_at', c.captured_at, 'captured_by', c.captured_by, 'turn_id', c.turn_id,
           'content_hash', c.content_hash)::text AS line
  FROM eval_case c
  LEFT JOIN unnest((SELECT d.case_ids FROM eval_dataset d WHERE d.id = :'dataset_id'::uuid)::uuid[])
       WITH ORDINALITY AS m (id, place) ON m.id = c.id
 WHERE (:'dataset_id'::uuid IS NULL OR m.place IS NOT NULL)
   AND (:'tags'::text[] IS NULL OR c.tags @> :'tags'::text[])
   AND (:'any_tags'::text[] IS NULL OR c.tags && :'any_tags'::text[])
   AND (:'not_tags'::text[] IS NULL OR NOT c.tags && :'not_tags'::text[])
   AND (:'source'::text IS NULL OR c.source = :'source'::text)
   AND (:'since'::timestamptz IS NULL OR c.captured_at >= :'since'::timestamptz)
   AND (:'until'::timestamptz IS NULL OR c.captured_at < :'until'::timestamptz)
 ORDER BY m.place, c.captured_at, c.id
 LIMIT :'limit'::bigint;
