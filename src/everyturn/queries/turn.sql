-- Which turn has this id?
SELECT t.id, t.seq, t.conversation, t.agent, t.kind, t.payload, t.created_at
  FROM agent_turns t
 WHERE t.id = :'id'::uuid;
