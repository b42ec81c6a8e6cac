SELECT
  t.payload ->> 'body'      AS comment_body,
  t.payload ->> 'path'      AS path,
  count(*)                  AS times_dismissed,
  max(e.rationale)          AS last_reason
FROM agent_turns t
JOIN agent_evals e ON e.turn_id = t.id
WHERE t.agent = 'code-reviewer'
  AND t.kind  = 'tool_result'
  AND t.payload ->> 'toolName' = 'post_review_comment'
  AND e.verdict = 'bad'
  AND t.payload ->> 'repo' = $1
  AND t.created_at > now() - interval '90 days'
GROUP BY 1, 2
ORDER BY times_dismissed DESC
LIMIT 20
