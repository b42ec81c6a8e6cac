-- What are the last turns of this conversation? The cut moves back to a user or model turn: calls keep their outcomes.
WITH cut AS (
    SELECT min(l.seq) AS seq
      FROM (SELECT t.seq
              FROM agent_turns t
             WHERE t.conversation = :'conversation'::uuid
             ORDER BY t.seq DESC
             LIMIT :'last'::bigint) AS l
), start AS (
    SELECT t.seq
      FROM agent_turns t, cut
     WHERE t.conversation = :'conversation'::uuid
       AND t.seq <= cut.seq
       AND t.kind IN ('user', 'model')
     ORDER BY t.seq DESC
     LIMIT 1
)
SELECT t.id, t.seq, t.conversation, t.agent, t.kind, t.payload, t.created_at
  FROM agent_turns t
 WHERE t.conversation = :'conversation'::uuid
   AND t.seq >= coalesce((SELECT seq FROM start), (SELECT seq FROM cut))
 ORDER BY t.seq;
