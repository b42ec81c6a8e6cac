-- What is in this case?
SELECT c.id, c.source, c.prompt, c.context, c.reference, c.tags, c.captured_at, c.captured_by, c.turn_id,
       c.content_hash
  FROM eval_case c
 WHERE c.id = :'id'::uuid;
