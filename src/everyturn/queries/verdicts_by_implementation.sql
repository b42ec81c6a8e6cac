-- How were the results of an agent's tools judged, by the tool's implementation?
--
-- A turn counts once, by its standing verdict: the latest human one, or, where no human has spoken, the latest of any
-- evaluator; with `evaluator`, the latest of that one. A result without an implHash has NULL.
--
-- agent, tool    whose results; tool may be NULL for all
-- since, until   created_at within [since, until); may be NULL
-- model          of the answer that made the call, as its payload names it; may be NULL
-- prompt_rev     the beginning of that answer's promptRev; may be NULL
-- evaluator      may be NULL

WITH judged AS (
    SELECT t.payload ->> 'toolName' AS tool, t.payload ->> 'implHash' AS impl_hash,
           (SELECT e.verdict
              FROM agent_evals e
             WHERE e.turn_id = t.id AND e.conversation = t.conversation
               AND coalesce(e.payload ->> 'target', 'turn') = 'turn'
               AND (:'evaluator'::text IS NULL OR e.evaluator = :'evaluator'::text)
             ORDER BY split_part(e.evaluator, ':', 1) = 'human' DESC, e.created_at DESC, e.id DESC
             LIMIT 1) AS verdict
      FROM agent_turns t
     WHERE t.agent = :'agent'::text
       AND t.payload ->> 'toolName' IS NOT NULL
       AND (:'tool'::text IS NULL OR t.payload ->> 'toolName' = :'tool'::text)
       AND t.kind = 'tool_result'
       AND (:'since'::timestamptz IS NULL OR t.created_at >= :'since'::timestamptz)
       AND (:'until'::timestamptz IS NULL OR t.created_at < :'until'::timestamptz)
       AND (:'model'::text IS NULL AND :'prompt_rev'::text IS NULL OR EXISTS (
               SELECT
                 FROM (SELECT m.payload
                         FROM agent_turns m
                        WHERE m.conversation = t.conversation AND m.seq < t.seq AND m.kind = 'model'
                        ORDER BY m.seq DESC
                        LIMIT 1) AS answer
                WHERE (:'model'::text IS NULL OR answer.payload ->> 'model' = :'model'::text)
                  AND (:'prompt_rev'::text IS NULL
                       OR starts_with(answer.payload ->> 'promptRev', :'prompt_rev'::text))))
)
SELECT j.tool, j.impl_hash, j.verdict, count(*) AS turns
  FROM judged j
 WHERE j.verdict IS NOT NULL
 GROUP BY 1, 2, 3
 ORDER BY 1, 2, 3;
