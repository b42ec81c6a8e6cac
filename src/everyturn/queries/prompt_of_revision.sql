-- What is the text of the instructions with this revision, as far as a replay or a case knows it?
(SELECT p.prompt
   FROM eval_replay p
  WHERE p.prompt_rev = :'prompt_rev'::text AND p.prompt IS NOT NULL
  LIMIT 1)
UNION ALL
(SELECT c.context ->> 'instructions'
   FROM eval_case c
  WHERE c.context ->> 'promptRev' = :'prompt_rev'::text AND c.context ->> 'instructions' IS NOT NULL
  LIMIT 1)
 LIMIT 1;
