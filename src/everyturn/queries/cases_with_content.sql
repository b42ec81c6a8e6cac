-- Which cases have exactly this content (prompt, context and reference), the oldest first?
-- records   a JSON array of {prompt, context, reference}; place is the position in it, from 1

SELECT a.place, c.id
  FROM jsonb_array_elements(:'records'::jsonb) WITH ORDINALITY AS a (r, place)
  JOIN eval_case c
    ON c.content_hash = everyturn_case_hash(r ->> 'prompt', coalesce(r -> 'context', '{}'), r ->> 'reference')
 ORDER BY a.place, c.captured_at, c.id;
