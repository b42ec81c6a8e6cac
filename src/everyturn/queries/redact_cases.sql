-- Mask cases. given: a JSON array of {id, prompt, context, reference}.
SELECT everyturn_redact(array_agg((g ->> 'id')::uuid), array_agg(g ->> 'prompt'), array_agg(g -> 'context'),
                        array_agg(g ->> 'reference')) AS cases
  FROM jsonb_array_elements(:'given'::jsonb) AS g;
