-- Store vectors that were owed. records is a JSON array of {id, embedding}.
UPDATE eval_case c
   SET embedding = (a.r ->> 'embedding')::vector, embedded_by = :'embedded_by'::text
  FROM jsonb_array_elements(:'records'::jsonb) AS a (r)
 WHERE c.id = (a.r ->> 'id')::uuid
   AND c.embedding IS NULL;
