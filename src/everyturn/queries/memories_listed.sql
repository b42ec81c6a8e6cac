-- What is remembered? The newest first.
--
-- Every filter may be empty:
--   kind           episodic, semantic or procedural
--   scope, agent   equal to the column
--   subjects       the memory has all of them; the key of a procedural one counts as a subject
--   since, until   created_at within [since, until)
-- history   true: superseded and expired ones too
-- limit     how many rows; NULL for all

SELECT m.id, m.kind, m.scope, m.agent, m.subjects, m.key, m.text, m.attributes, m.created_at, m.expires_at,
       m.superseded_by, m.embedded_by
  FROM (
      SELECT id, 'episodic' AS kind, scope, agent, subjects, NULL AS key, text, attributes, created_at, expires_at,
             NULL::uuid AS superseded_by, embedded_by
        FROM agent_episodic
      UNION ALL
      SELECT id, 'semantic', scope, agent, subjects, NULL, text, attributes, created_at, expires_at,
             superseded_by, embedded_by
        FROM agent_semantic
      UNION ALL
      SELECT id, 'procedural', scope, agent, array_append(subjects, cache_key), cache_key, value #>> '{}', NULL,
             created_at, expires_at, NULL, NULL
        FROM agent_procedural
  ) AS m
 WHERE (nullif(:'kind'::text, '') IS NULL OR m.kind = :'kind'::text)
   AND (nullif(:'scope'::text, '') IS NULL OR m.scope = :'scope'::text)
   AND (nullif(:'agent'::text, '') IS NULL OR m.agent = :'agent'::text)
   AND (nullif(:'subjects'::text, '') IS NULL OR m.subjects @> nullif(:'subjects'::text, '')::text[])
   AND (nullif(:'since'::text, '') IS NULL OR m.created_at >= nullif(:'since'::text, '')::timestamptz)
   AND (nullif(:'until'::text, '') IS NULL OR m.created_at < nullif(:'until'::text, '')::timestamptz)
   AND (:'history'::boolean OR (m.superseded_by IS NULL AND (m.expires_at IS NULL OR m.expires_at > now())))
 ORDER BY m.created_at DESC, m.id DESC
 LIMIT :'limit'::bigint;
