-- What did I get wrong: which comments (answers, results) were judged bad, the most often dismissed first?
--
-- A turn counts once, however many verdicts it has, and while its standing verdict is bad: the latest human one, or,
-- where no human has spoken, the latest of any evaluator. (human and human:NAME are people.) A verdict on a whole
-- conversation stands apart from those on its last turn.
--
-- agent       whose turns
-- tool        the results of this tool; NULL for turns of every kind
-- repo        the payload's repo; NULL for all
-- matching    a JSON object: every key of it equals that key of the payload, as text; NULL for all
-- days, since appended within so many days, or from then on; NULL for all
-- evaluator   only what this evaluator judged, by its latest verdict; NULL for the rule above
-- limit       how many rows; NULL for all

WITH standing AS (
    SELECT t.id, t.payload, t.kind, b.evaluator, b.created_at, b.id AS eval_id,
           -- A verdict that was only said again keeps the reason it was given before.
           coalesce(b.rationale, (
               SELECT r.rationale
                 FROM agent_evals r
                WHERE r.turn_id = b.turn_id AND r.conversation = b.conversation
                  AND r.verdict = 'bad' AND r.rationale IS NOT NULL
                  AND (:'evaluator'::text IS NULL OR r.evaluator = :'evaluator'::text)
                ORDER BY split_part(r.evaluator, ':', 1) = 'human' DESC, r.created_at DESC, r.id DESC
                LIMIT 1)) AS rationale
      FROM agent_evals b
      JOIN agent_turns t ON t.id = b.turn_id AND t.conversation = b.conversation
     WHERE b.verdict = 'bad'
       AND (:'evaluator'::text IS NULL OR b.evaluator = :'evaluator'::text)
       AND t.agent = :'agent'::text
       AND (:'tool'::text IS NULL OR t.kind = 'tool_result' AND t.payload ->> 'toolName' = :'tool'::text)
       AND (:'repo'::text IS NULL OR t.payload ->> 'repo' = :'repo'::text)
       AND (:'matching'::jsonb IS NULL OR NOT EXISTS (
               SELECT FROM jsonb_each_text(:'matching'::jsonb) AS w (key, value)
                WHERE t.payload ->> w.key IS DISTINCT FROM w.value))
       AND (:'days'::float8 IS NULL OR t.created_at > now() - :'days'::float8 * interval '1 day')
       AND (:'since'::timestamptz IS NULL OR t.created_at >= :'since'::timestamptz)
       AND NOT EXISTS (
               SELECT
                 FROM agent_evals e
                WHERE e.turn_id = b.turn_id AND e.conversation = b.conversation
                  AND (:'evaluator'::text IS NULL OR e.evaluator = :'evaluator'::text)
                  AND coalesce(e.payload ->> 'target', 'turn') = coalesce(b.payload ->> 'target', 'turn')
                  AND (split_part(e.evaluator, ':', 1) = 'human', e.created_at, e.id)
                    > (split_part(b.evaluator, ':', 1) = 'human', b.created_at, b.id))
)
SELECT coalesce(s.payload ->> 'body', everyturn_turn_text(s.kind, s.payload), s.payload ->> 'result',
                s.payload ->> 'message') AS comment_body,
       s.payload ->> 'path' AS path,
       count(DISTINCT s.id) AS times_dismissed,
       (array_agg(s.rationale ORDER BY s.created_at DESC, s.eval_id DESC) FILTER (WHERE s.rationale IS NOT NULL))[1]
           AS last_reason,
       (array_agg(s.evaluator ORDER BY s.created_at DESC, s.eval_id DESC))[1] AS last_evaluator,
       max(s.created_at) AS last_judged_at,
       (array_agg(s.id ORDER BY s.created_at DESC, s.eval_id DESC))[1] AS last_turn
  FROM standing s
 GROUP BY 1, 2
 ORDER BY times_dismissed DESC, last_judged_at DESC, 1, 2
 LIMIT :'limit'::bigint;
