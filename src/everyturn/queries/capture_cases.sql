-- Store cases, given as one JSON array; the vector is written with its row, or is owed.
INSERT INTO eval_case (id, source, prompt, context, reference, tags, captured_at, captured_by, turn_id,
                       embedding, embedded_by)
SELECT (r ->> 'id')::uuid, r ->> 'source', r ->> 'prompt', coalesce(r -> 'context', '{}'), r ->> 'reference',
       ARRAY(SELECT jsonb_array_elements_text(r -> 'tags')), coalesce((r ->> 'captured_at')::timestamptz, now()),
       r ->> 'captured_by', (r ->> 'turn_id')::uuid, (r ->> 'embedding')::vector, r ->> 'embedded_by'
  FROM jsonb_array_elements(:'records'::jsonb) AS a (r)
RETURNING id, source, prompt, context, reference, tags, captured_at, captured_by, turn_id, content_hash;
