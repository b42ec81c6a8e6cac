-- Up to where may the turns of these conversations go? One page of conversations, in the order of their ids.
--
-- A cut never parts what belongs together: it is moved back to the user turn that the first turn to be kept answers.
--
-- after       the last conversation of the page before; NULL for the first page
-- agent       only conversations with turns of this agent; may be NULL
-- only        only this conversation; may be NULL
-- older_than  turns from then on are kept; may be NULL
-- keep_last   as many turns at the end are kept; may be NULL
-- batch       how many conversations
WITH page AS (
    SELECT DISTINCT t.conversation
      FROM agent_turns t
     WHERE (:'after'::uuid IS NULL OR t.conversation > :'after'::uuid)
       AND (:'only'::uuid IS NULL OR t.conversation = :'only'::uuid)
       AND (:'agent'::text IS NULL OR t.agent = :'agent'::text)
     ORDER BY t.conversation
     LIMIT :'batch'::bigint
), kept AS (
    SELECT p.conversation,
           least(
               CASE WHEN :'older_than'::timestamptz IS NOT NULL THEN (
                   SELECT min(t.seq) FROM agent_turns t
                    WHERE t.conversation = p.conversation AND t.created_at >= :'older_than'::timestamptz) END,
               CASE WHEN :'keep_last'::bigint IS NOT NULL THEN coalesce((
                   SELECT t.seq FROM agent_turns t
                    WHERE t.conversation = p.conversation
                    ORDER BY t.seq DESC
                   OFFSET :'keep_last'::bigint - 1 LIMIT 1), 0) END) AS first_seq
      FROM page p
)
SELECT k.conversation,
       coalesce(
           (SELECT max(t.seq) FROM agent_turns t
             WHERE t.conversation = k.conversation AND t.seq <= k.first_seq AND t.kind = 'user'),
           (SELECT max(t.seq) FROM agent_turns t
             WHERE t.conversation = k.conversation AND t.seq <= k.first_seq AND t.kind = 'model'),
           k.first_seq,
           9223372036854775807) AS cut
  FROM kept k
 ORDER BY k.conversation;
