-- Write what was read of a transcript: its turns, its lines, and how far it was read; all of it, or nothing where
-- another process got further meanwhile (no row of claude_code_files is written then). A line that another process
-- wrote meanwhile breaks the primary key of claude_code_lines. Columns of turns come joined, as in append_turns.
WITH held AS (
    INSERT INTO claude_code_files AS f (id, path, position, line, begun, tail, state)
    VALUES (:'file'::uuid, :'path'::text, :'position'::bigint, :'line'::bigint, :'begun'::boolean, :'tail'::text,
            :'state'::jsonb)
        ON CONFLICT (id) DO UPDATE
       SET path = excluded.path, position = excluded.position, line = excluded.line, begun = excluded.begun,
           tail = excluded.tail, state = excluded.state, read_at = excluded.read_at
     WHERE f.position = :'expected_position'::bigint AND f.tail = :'expected_tail'::text
    RETURNING f.id
), own AS (
    INSERT INTO claude_code_lines (key, conversation)
    SELECT u.key, u.conversation
      FROM unnest(string_to_array(:'own_keys', ',')::uuid[], string_to_array(:'own_conversations', ',')::uuid[])
           AS u (key, conversation)
     WHERE EXISTS (SELECT FROM held)
), anywhere AS (
    INSERT INTO claude_code_lines (key, conversation)
    SELECT u.key, u.conversation
      FROM unnest(string_to_array(:'any_keys', ',')::uuid[], string_to_array(:'any_conversations', ',')::uuid[])
           AS u (key, conversation)
     WHERE EXISTS (SELECT FROM held)
        ON CONFLICT (key) DO NOTHING
), appended AS (
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
           ) WITH ORDINALITY
           AS u (id, conversation, agent, kind, payload, embedding, embedded_by, created_at, place)
     WHERE EXISTS (SELECT FROM held)
     ORDER BY u.place
        ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT (SELECT count(*) FROM held) AS held,
       (SELECT coalesce(array_agg(id), '{}') FROM appended) AS appended;
