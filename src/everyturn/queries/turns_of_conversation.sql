-- What was said and done in this conversation, in order, after a given seq? (limit NULL: all)
SELECT t.id, t.seq, t.conversation, t.agent, t.kind, t.payload, t.created_at
  FROM agent_turns t
 WHERE t.conversation = :'conversation'::uuid
   AND t.seq > :'after'::bigint
 ORDER BY t.seq
 LIMIT :'limit'::bigint;
