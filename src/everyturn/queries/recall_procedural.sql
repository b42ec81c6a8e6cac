-- What is stored under this key, or about these subjects? Expired values are never returned.
--
--   scope, agent   equal to the column; NULL is any
--   key            the exact key; NULL is any
--   subjects       the value has all of them, its key counting as one; NULL is any
--   since, until   updated_at within [since, until)

SELECT p.id, p.scope, p.agent, p.cache_key, p.subjects, p.value, p.created_at, p.updated_at, p.expires_at,
       p.source_turn
  FROM agent_procedural p
 WHERE (:'scope'::text IS NULL OR p.scope = :'scope'::text)
   AND (:'agent'::text IS NULL OR p.agent = :'agent'::text)
   AND (:'key'::text IS NULL OR array_append(p.subjects, p.cache_key) @> ARRAY[:'key'::text] AND p.cache_key = :'key'::text)
   AND (:'subjects'::text[] IS NULL OR array_append(p.subjects, p.cache_key) @> :'subjects'::text[])
   AND (:'since'::timestamptz IS NULL OR p.updated_at >= :'since'::timestamptz)
   AND (:'until'::timestamptz IS NULL OR p.updated_at < :'until'::timestamptz)
   AND (p.expires_at IS NULL OR p.expires_at > now())
 ORDER BY p.updated_at DESC, p.id DESC
 LIMIT :'row_limit'::bigint;
