-- Which cases does this dataset hold, in the order in which they are frozen?
SELECT m.place, c.id, c.source, c.prompt, c.context, c.reference, c.tags, c.captured_at, c.captured_by, c.turn_id,
       c.content_hash
  FROM eval_dataset d
 CROSS JOIN LATERAL unnest(d.case_ids) WITH ORDINALITY AS m (id, place)
  JOIN eval_case c ON c.id = m.id
 WHERE d.id = :'dataset_id'::uuid
 ORDER BY m.place
 LIMIT :'limit'::bigint;
