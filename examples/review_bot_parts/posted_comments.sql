-- Which comments did the bot post on a repository, and what was last fetched of what reviewers make of them?
--
-- A comment that two runs took for theirs (one of them was killed before it could remember it) counts for the first.
SELECT DISTINCT ON (comment_id)
  t.id                                    AS turn_id,
  (t.payload ->> 'pr')::bigint            AS pr,
  (t.payload ->> 'comment_id')::bigint    AS comment_id,
  t.payload ->> 'path'                    AS path,
  (t.payload ->> 'line')::bigint          AS line,
  t.payload ->> 'body'                    AS body,
  last.verdict,
  last.rationale
FROM agent_turns t
LEFT JOIN LATERAL (
  SELECT e.verdict, e.rationale
  FROM agent_evals e
  WHERE e.turn_id = t.id
    AND e.conversation = t.conversation
    AND e.evaluator = 'human'
    AND e.payload ->> 'source' = 'review-bot sync'
  ORDER BY e.created_at DESC, e.id DESC
  LIMIT 1
) AS last ON true
WHERE t.agent = %(agent)s
  AND t.kind = 'tool_result'
  AND t.payload ->> 'toolName' = 'post_review_comment'
  AND t.payload ->> 'repo' = %(repo)s
  AND t.payload ->> 'comment_id' IS NOT NULL
  AND t.payload ->> 'repeated' IS NULL
  AND (%(pr)s::bigint IS NULL OR (t.payload ->> 'pr')::bigint = %(pr)s)
  AND t.created_at > now() - %(days)s * interval '1 day'
ORDER BY comment_id, t.seq;
