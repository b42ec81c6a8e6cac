-- Append many turns. A column's values come joined by U+001F, which JSON text never holds; U+001E alone is NULL.
-- seq follows the order of the arrays.
WITH appended AS (
    INSERT INTO agent_turns (id, conversation, agent, kind, payload, embedding, embedded_by, created_at)
    SELECT u.id, u.conversation, u.agent, u.kind, u.payload::jsonb, u.embedding::vector, u.embedded_by,
           coalesce(u.created_at::timestamptz, now())
      FROM unnest(
               string_to_array(:'ids', ',')::uuid[],
               string_to_array(:'conversations', ',')::uuid[],
               string_to_array(:'agents', E'\x1f'),
               string_to_array(:'kinds', ','),
               string_to_array(:'payloads', E'\x1f'),
               string_to_array(:'embeddings', E'\x1f', E'\x1e'),
               string_to_array(:'embedders', E'\x1f', E'\x1e'),
               string_to_array(:'times', E'\x1f', E'\x1e')
           ) AS u (id, conversation, agent, kind, payload, embedding, embedded_by, created_at)
    RETURNING id, seq
)
SELECT string_agg(encode(uuid_send(id), 'hex') || seq::text, ',') AS appended, now() AS created_at
  FROM appended;
