-- Append many stream events. A column's values come joined by U+001F, which JSON text never holds; U+001E alone is NULL.
-- Where a value may be empty each has the separator in front. id follows the order of the arrays.
WITH appended AS (
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
SELECT max(id) AS last_event
  FROM appended;
