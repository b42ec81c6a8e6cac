-- Which of these cases still lack their vector?
SELECT c.id, c.prompt
  FROM eval_case c
 WHERE c.id = ANY (:'ids'::uuid[])
   AND c.embedding IS NULL;
