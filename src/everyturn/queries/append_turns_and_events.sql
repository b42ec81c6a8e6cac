-- Append turns and stream events in one statement, so that both are there or neither; take and free the advisory locks
-- of conversations on the way. Columns come as in append_turns.sql and append_events.sql.
WITH appended_turns AS (
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
), appended_events AS (
    INSERT INTO agent_events
           (run_id, agent_id, agent_name, turn, tool_name, tool_call_id, internal_call_id, event)
    SELECT u.run_id, u.agent_id, u.agent_name, u.turn, u.tool_name, u.tool_call_id, u.internal_call_id,
           u.event::jsonb
      FROM unnest(
               string_to_array(:'runs', E'\x1f'),
               string_to_array(:'agent_ids', E'\x1f'),
               (string_to_array(:'agent_names', E'\x1f', E'\x1e'))[2:],
               string_to_array(:'event_turns', ',', '')::int[],
               (string_to_array(:'tool_names', E'\x1f', E'\x1e'))[2:],
               (string_to_array(:'tool_call_ids', E'\x1f', E'\x1e'))[2:],
               (string_to_array(:'internal_call_ids', E'\x1f', E'\x1e'))[2:],
               string_to_array(:'events', E'\x1f')
           ) AS u (run_id, agent_id, agent_name, turn, tool_name, tool_call_id, internal_call_id, event)
    RETURNING id
)
SELECT (SELECT string_agg(encode(uuid_send(id), 'hex') || seq::text, ',') FROM appended_turns) AS appended,
       now() AS created_at,
       (SELECT max(id) FROM appended_events) AS last_event,
       (SELECT count(*) FILTER (WHERE pg_try_advisory_lock(k))
          FROM unnest(string_to_array(:'lock', ',')::bigint[]) AS k) AS locked,
       (SELECT count(*) FILTER (WHERE pg_advisory_unlock(k))
          FROM unnest(string_to_array(:'unlock', ',')::bigint[]) AS k) AS unlocked;
