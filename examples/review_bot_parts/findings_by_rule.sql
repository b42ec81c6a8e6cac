-- What the bot found, by rule. A comment begins with its rule in brackets: "[bare-except] ...".
SELECT
  coalesce(substring(t.payload ->> 'body' FROM '^\[([a-z0-9-]+)\]'), 'other') AS rule,
  count(*)                                                                    AS comments,
  count(DISTINCT t.payload ->> 'path')                                        AS files,
  max(t.created_at)                                                           AS last_posted
FROM agent_turns t
WHERE t.agent = %(agent)s
  AND t.kind = 'tool_result'
  AND t.payload ->> 'toolName' = 'post_review_comment'
GROUP BY 1
ORDER BY comments DESC, rule;
