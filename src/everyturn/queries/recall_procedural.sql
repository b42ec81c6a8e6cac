-- What is stored under this key, or about these subjects? Expired values are never returned.
--
--   scope, agent   equal to the column; empty is any
--   key            the exact key; empty is any
--   subjects       the value has all of them, its key counting as one; empty is any
--   since, until   updated_at within [since, until)

SELECT p.id, p.scope, p.agent, p.cache_key, p.subjects, p.value, p.created_at, p.updated_at, p.expires_at,
       p.source_turn
  FROM agent_procedural p
 WHERE (nullif(:'scope'::text, '') IS NULL OR p.scope = :'scope'::text)
   AND (nullif(:'agent'::text, '') IS NULL OR p.agent = :'agent'::text)
   AND (nullif(:'key'::text, '') IS NULL
        -- Found by the index on subjects, which every key is in.
        OR (array_append(p.subjects, p.cache_key) @> ARRAY[:'key'::text] AND p.cache_key = :'key'::text))
   AND (nullif(:'subjects'::text, '') IS NULL
        OR array_append(p.subjects, p.cache_key) @> nullif(:'subjects'::text, '')::text[])
   AND (nullif(:'since'::text, '') IS NULL OR p.updated_at >= nullif(:'since'::text, '')::timestamptz)
   AND (nullif(:'until'::text, '') IS NULL OR p.updated_at < nullif(:'until'::text, '')::timestamptz)
   AND (p.expires_at IS NULL OR p.expires_at > now())
 ORDER BY p.updated_at DESC, p.id DESC
 LIMIT :'row_limit'::bigint;
