-- What are the content hashes of these records, in order, and which cases have their ids?
SELECT a.place, everyturn_case_hash(r ->> 'prompt', coalesce(r -> 'context', '{}'), r ->> 'reference') AS hash,
       c.content_hash AS stored
  FROM jsonb_array_elements(:'records'::jsonb) WITH ORDINALITY AS a (r, place)
  LEFT JOIN eval_case c ON c.id = (r ->> 'id')::uuid
 ORDER BY a.place;
