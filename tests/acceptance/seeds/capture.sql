INSERT INTO eval_case (source, prompt, context, tags, captured_by, embedding)
VALUES (
  'handcrafted',
  $$What does parse_diff do with a renamed file?$$,
  '{"files": ["src/diff.py"]}'::jsonb,
  string_to_array('long-context,tool-use', ',')::text[],
  'ana',
  (SELECT ('[' || string_agg((n % 7)::text, ',') || ']') FROM generate_series(1, 1024) n)::vector
)
