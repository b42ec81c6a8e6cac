-- What are the last turns of this conversation? The cut moves back to a user or model turn: calls keep their outcomes.
-- Where a log has neither before the cut, it moves back to the calls of the outcomes that follow.
WITH recent AS MATERIALIZED (
    SELECT t.seq, t.kind, t.payload ->> 'toolCallId' AS call
      FROM agent_turns t
     WHERE t.conversation = :'conversation'::uuid
     ORDER BY t.seq DESC
     LIMIT :'last'::bigint
), cut AS (
    SELECT min(r.seq) AS seq FROM recent r
), start AS (
    SELECT t.seq
      FROM agent_turns t, cut
     WHERE t.conversation = :'conversation'::uuid
       AND t.seq <= cut.seq
       AND t.kind IN ('user', 'model')
     ORDER BY t.seq DESC
     LIMIT 1
), called AS (
    SELECT min(c.seq) AS seq
      FROM recent r
     CROSS JOIN LATERAL (
           SELECT t.seq
             FROM agent_turns t, cut
            WHERE t.conversation = :'conversation'::uuid
              AND t.seq < cut.seq
              AND t.kind = 'tool_call'
              AND t.payload ->> 'toolCallId' = r.call
            ORDER BY t.seq DESC
            LIMIT 1
           ) AS c
     WHERE r.kind IN ('tool_result', 'error')
       AND NOT EXISTS (SELECT FROM start)
       AND NOT EXISTS (SELECT FROM recent o WHERE o.kind = 'tool_call' AND o.call = r.call AND o.seq < r.seq)
)
SELECT t.id, t.seq, t.conversation, t.agent, t.kind, t.payload, t.created_at
  FROM agent_turns t
 WHERE t.conversation = :'conversation'::uuid
   AND t.seq >= coalesce((SELECT seq FROM start), (SELECT seq FROM called), (SELECT seq FROM cut))
 ORDER BY t.seq;
