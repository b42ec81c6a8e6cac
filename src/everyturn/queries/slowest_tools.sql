-- Which tools take longest? By the 95th percentile of what their handlers took, with the calls that ended in an error.
--
-- agent   may be left empty
-- since   created_at from then on; may be left empty

SELECT t.agent, t.payload ->> 'toolName' AS tool,
       count(*) FILTER (WHERE t.kind = 'tool_result') AS results,
       count(*) FILTER (WHERE t.kind = 'error') AS errors,
       round(percentile_cont(0.5) WITHIN GROUP (ORDER BY took.ms)::numeric, 1) AS median_ms,
       round(percentile_cont(0.95) WITHIN GROUP (ORDER BY took.ms)::numeric, 1) AS p95_ms,
       round(max(took.ms)::numeric, 1) AS max_ms
  FROM agent_turns t
 CROSS JOIN LATERAL (
       SELECT CASE WHEN jsonb_typeof(t.payload -> 'latencyMs') = 'number'
                   THEN (t.payload ->> 'latencyMs')::double precision END AS ms) AS took
 WHERE t.payload ->> 'toolName' IS NOT NULL
   AND t.payload ->> 'toolCallId' IS NOT NULL
   AND t.kind IN ('tool_result', 'error')
   AND (nullif(:'agent'::text, '') IS NULL OR t.agent = :'agent'::text)
   AND (nullif(:'since'::text, '') IS NULL OR t.created_at >= nullif(:'since'::text, '')::timestamptz)
 GROUP BY 1, 2
 ORDER BY p95_ms DESC NULLS LAST, tool;
