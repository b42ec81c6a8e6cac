-- Which of these contents does a case have already?
SELECT c.content_hash
  FROM eval_case c
 WHERE c.content_hash = ANY (:'hashes'::text[]);
