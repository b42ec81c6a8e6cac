-- What did each model cost? An answer whose price is unknown is counted as unpriced, never as free.
--
-- agent   may be left empty
-- since   created_at from then on; may be left empty

SELECT t.agent, coalesce(t.payload ->> 'model', 'unknown') AS model, count(*) AS answers,
       count(*) FILTER (WHERE price.usd IS NULL) AS unpriced,
       sum(price.usd) AS cost_usd,
       sum(tokens.input) AS input_tokens,
       sum(tokens.output) AS output_tokens
  FROM agent_turns t
 CROSS JOIN LATERAL (
       SELECT CASE WHEN jsonb_typeof(t.payload -> 'costUsd') IN ('number', 'string')
                    AND t.payload ->> 'costUsd' ~ '^[0-9]{1,30}([.][0-9]+)?$'
                   THEN (t.payload ->> 'costUsd')::numeric END AS usd) AS price
 CROSS JOIN LATERAL (
       SELECT CASE WHEN jsonb_typeof(t.payload #> '{usage,inputTokens}') = 'number'
                   THEN trunc((t.payload #>> '{usage,inputTokens}')::numeric) END AS input,
              CASE WHEN jsonb_typeof(t.payload #> '{usage,outputTokens}') = 'number'
                   THEN trunc((t.payload #>> '{usage,outputTokens}')::numeric) END AS output) AS tokens
 WHERE t.kind = 'model'
   AND (nullif(:'agent'::text, '') IS NULL OR t.agent = :'agent'::text)
   AND (nullif(:'since'::text, '') IS NULL OR t.created_at >= nullif(:'since'::text, '')::timestamptz)
 GROUP BY 1, 2
 ORDER BY cost_usd DESC NULLS LAST, model;
