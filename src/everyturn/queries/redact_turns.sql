-- Mask turns, and the memories made from them, which say what their turns say. given: a JSON array of {id, payload}.
SELECT everyturn_redact(array_agg((g ->> 'id')::uuid), array_agg(g -> 'payload')) AS turns
  FROM jsonb_array_elements(:'given'::jsonb) AS g;
