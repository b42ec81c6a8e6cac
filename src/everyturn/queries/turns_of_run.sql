-- Which turns did a run write? Those of its conversation that name it, and all of its child agents' conversations; where
-- its events do not tell the conversation (NULL), every turn that names it is looked for.
SELECT t.id, t.conversation, t.payload::text
  FROM agent_turns t
 WHERE (t.conversation = :'conversation'::uuid AND t.payload ->> 'runId' = :'run_id'::text)
    OR t.conversation = ANY (:'children'::uuid[])
    OR (:'conversation'::uuid IS NULL AND t.payload ->> 'runId' = :'run_id'::text)
 ORDER BY t.seq;
