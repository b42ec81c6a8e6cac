-- Which of these turns are stored, and as what?
SELECT t.id, t.seq, t.created_at
  FROM agent_turns t
 WHERE t.id = ANY (:'ids'::uuid[]);
