-- What had the user last said before this turn?
SELECT t.payload
  FROM agent_turns t
 WHERE t.conversation = :'conversation'::uuid
   AND t.seq < :'seq'::bigint
   AND t.kind = 'user'
 ORDER BY t.seq DESC
 LIMIT 1;
