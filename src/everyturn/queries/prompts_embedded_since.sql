-- How many user turns since then have a vector to be compared?
SELECT count(*) AS turns
  FROM agent_turns t
 WHERE t.kind = 'user'
   AND t.embedding IS NOT NULL
   AND t.created_at >= :'since'::timestamptz;
