-- Which conversations that have ended has this evaluator not judged yet? One page of their last model turns, by id.
-- Ended: the last answer asks for no tool, or an error ended the run after it. A conversation that goes on has another
-- last model turn, and is judged again.
--
-- agent, tool, since, after, above, ids, whole   as in turns_without_verdict; with `tool`, conversations that used it

SELECT t.id, t.seq, t.conversation, t.agent, t.kind, t.created_at,
       CASE WHEN :'whole'::boolean THEN t.payload END AS payload
  FROM agent_turns t
 WHERE t.kind = 'model'
   AND (:'agent'::text IS NULL OR t.agent = :'agent'::text)
   AND (:'since'::timestamptz IS NULL OR t.created_at >= :'since'::timestamptz)
   AND (:'after'::uuid IS NULL OR t.id > :'after'::uuid)
   AND (:'above'::bigint IS NULL OR t.conversation = ANY (ARRAY(
           SELECT DISTINCT n.conversation FROM agent_turns n WHERE n.seq > :'above'::bigint)))
   AND (:'ids'::uuid[] IS NULL OR t.id = ANY (:'ids'::uuid[]))
   AND NOT EXISTS (
           SELECT
             FROM agent_evals e
            WHERE e.turn_id = t.id AND e.conversation = t.conversation AND e.evaluator = :'evaluator'::text)
   AND NOT EXISTS (
           SELECT
             FROM agent_turns l
            WHERE l.conversation = t.conversation AND l.seq > t.seq AND l.kind IN ('user', 'model'))
   AND (NOT jsonb_path_exists(t.payload, '$.toolCalls[*]')
        AND coalesce(t.payload ->> 'incomplete', 'false') = 'false'
        OR EXISTS (
           SELECT
             FROM agent_turns l
            WHERE l.conversation = t.conversation AND l.seq > t.seq
              AND l.kind = 'error' AND l.payload ->> 'toolCallId' IS NULL
              AND coalesce(l.payload ->> 'stage', '') <> 'hook'))
   AND (:'tool'::text IS NULL OR EXISTS (
           SELECT
             FROM agent_turns u
            WHERE u.conversation = t.conversation AND u.payload ->> 'toolName' = :'tool'::text))
 ORDER BY t.id
 LIMIT :'limit'::bigint;
