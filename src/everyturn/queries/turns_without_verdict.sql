-- Which turns has this evaluator not judged yet? One page of them, by id.
--
-- kinds, agent, tool   may be NULL
-- since                created_at from then on; NULL for all
-- after                the id of the last row of the page before; NULL for the first page
-- above                only turns with a greater seq; NULL for all
-- ids                  only these; NULL for all
-- whole                true to fetch the payload too

SELECT t.id, t.seq, t.conversation, t.agent, t.kind, t.created_at,
       CASE WHEN :'whole'::boolean THEN t.payload END AS payload
  FROM agent_turns t
 WHERE (:'kinds'::text[] IS NULL OR t.kind = ANY (:'kinds'::text[]))
   AND (:'agent'::text IS NULL OR t.agent = :'agent'::text)
   AND (:'tool'::text IS NULL OR t.payload ->> 'toolName' = :'tool'::text)
   AND (:'since'::timestamptz IS NULL OR t.created_at >= :'since'::timestamptz)
   AND (:'after'::uuid IS NULL OR t.id > :'after'::uuid)
   AND (:'above'::bigint IS NULL OR t.seq > :'above'::bigint)
   AND (:'ids'::uuid[] IS NULL OR t.id = ANY (:'ids'::uuid[]))
   AND NOT EXISTS (
           SELECT
             FROM agent_evals e
            WHERE e.turn_id = t.id AND e.conversation = t.conversation AND e.evaluator = :'evaluator'::text)
 ORDER BY t.id
 LIMIT :'limit'::bigint;
