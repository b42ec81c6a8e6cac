-- Which turns match? One page of them, in log order or newest first.
--
-- Every filter may be left empty:
--   conversation, agent, kind     equal to the column
--   tool, repo                    equal to the payload's toolName, repo
--   matching                      a JSON object: every key of it equals that key of the payload, as text
--   since, until                  created_at within [since, until)
-- oldest_first   true: from `after` on, by seq; false: down from `before`
-- after, before  the seq of the last row of the page before; empty for the first page
-- limit          how many rows; NULL for all
-- clip           the number of characters of the summary
-- whole          true to fetch the payload too

WITH matching AS NOT MATERIALIZED (
    SELECT t.*
      FROM agent_turns t
     WHERE (nullif(:'conversation'::text, '') IS NULL OR t.conversation = nullif(:'conversation'::text, '')::uuid)
       AND (nullif(:'agent'::text, '') IS NULL OR t.agent = :'agent'::text)
       AND (nullif(:'kind'::text, '') IS NULL OR t.kind = :'kind'::text)
       AND (nullif(:'tool'::text, '') IS NULL OR t.payload ->> 'toolName' = :'tool'::text)
       AND (nullif(:'repo'::text, '') IS NULL OR t.payload ->> 'repo' = :'repo'::text)
       AND (nullif(:'matching'::text, '') IS NULL OR NOT EXISTS (
               SELECT FROM jsonb_each_text(nullif(:'matching'::text, '')::jsonb) AS wanted (key, value)
                WHERE t.payload ->> wanted.key IS DISTINCT FROM wanted.value))
       AND (nullif(:'since'::text, '') IS NULL OR t.created_at >= nullif(:'since'::text, '')::timestamptz)
       AND (nullif(:'until'::text, '') IS NULL OR t.created_at < nullif(:'until'::text, '')::timestamptz)
),
page AS (
    (SELECT *
       FROM matching
      WHERE :'oldest_first'::boolean
        AND (nullif(:'after'::text, '') IS NULL OR seq > nullif(:'after'::text, '')::bigint)
      ORDER BY seq
      LIMIT :'limit'::bigint)
    UNION ALL
    (SELECT *
       FROM matching
      WHERE NOT :'oldest_first'::boolean
        AND (nullif(:'before'::text, '') IS NULL OR seq < nullif(:'before'::text, '')::bigint)
      ORDER BY seq DESC
      LIMIT :'limit'::bigint)
)
SELECT p.id, p.seq, p.conversation, p.agent, p.kind, p.payload ->> 'toolName' AS tool, p.created_at,
       left(CASE p.kind
           WHEN 'model' THEN concat_ws(' ', nullif(p.payload ->> 'text', ''), (
                SELECT string_agg(format('-> %s(%s)', call ->> 'name', call ->> 'args'), ' ')
                  FROM jsonb_path_query(p.payload, '$.toolCalls[*]') AS call))
           WHEN 'tool_call' THEN coalesce(p.payload ->> 'args', p.payload::text)
           WHEN 'tool_result' THEN
               coalesce(everyturn_turn_text(p.kind, p.payload), p.payload ->> 'result', p.payload::text)
           WHEN 'error' THEN
               coalesce(nullif(concat_ws(': ', p.payload ->> 'stage', p.payload ->> 'type',
                                         p.payload ->> 'message'), ''), p.payload::text)
           ELSE coalesce(p.payload ->> 'text', p.payload::text)
       END, :'clip'::int) AS summary,
       CASE WHEN :'whole'::boolean THEN p.payload END AS payload
  FROM page p
 ORDER BY CASE WHEN :'oldest_first'::boolean THEN p.seq ELSE -p.seq END;
